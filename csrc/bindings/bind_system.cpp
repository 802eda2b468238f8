// What the machine offers: instruction sets, threads, memory, speed.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "bindings/bindings.h"
#include "bindings/gil.h"
#include "core/cpu_features.h"
#include "core/system_limits.h"
#include "core/thread_pool.h"
#include "kernels/dispatch/device.h"
#include "kernels/dispatch/tables.h"
#include "kernels/ops/probe.h"
#include "kernels/ops/vocab.h"

namespace py = pybind11;

namespace llmi {
namespace {

py::dict CeilingsOf(int num_threads, int64_t num_bytes) {
  const KernelContext context = {&GetKernelTable(""), &ThreadPool::Shared(), num_threads};
  Ceilings ceilings;
  {
    const GilReleased release;
    ceilings = MeasureCeilings(context, num_bytes);
  }
  py::dict dict;
  dict["read_bytes_per_s"] = ceilings.read_bytes_per_s;
  dict["fma_ops_per_s"] = ceilings.fma_ops_per_s;
  dict["bf16_ops_per_s"] = ceilings.bf16_ops_per_s;
  dict["dots_ops_per_s"] = ceilings.dots_ops_per_s;
  return dict;
}

}  // namespace

void RegisterSystem(py::module_& module) {
  module.def(
      "system_info",
      [](const std::string& root) {
        const CpuFeatures& features = GetCpuFeatures();
        py::dict dict;
        dict["cpu"] = features.brand;
        dict["avx2"] = features.avx2;
        dict["avx512"] = features.avx512;
        dict["avx_vnni"] = features.avx_vnni;
        dict["avx512_bf16"] = features.avx512_bf16;
        dict["tables"] = AvailableTables();
        dict["num_threads"] = ThreadPool::DefaultNumThreads(root);
        dict["available_memory_bytes"] = AvailableMemoryBytes(root);
        dict["why_no_cuda"] = WhyNoCuda();
        return dict;
      },
      py::arg("root") = "", "What the processor and the system offer. root: a folder put before /proc and /sys, for tests.");
  py::class_<ReadProbe>(module, "ReadProbe", "Memory larger than the caches, to be read by `num_threads` threads.")
      .def(py::init([](int num_threads, int64_t num_bytes) {
             return ReadProbe({&GetKernelTable(""), &ThreadPool::Shared(), num_threads}, num_bytes);
           }),
           py::arg("num_threads"), py::arg("num_bytes"))
      .def("bytes_per_s", &ReadProbe::BytesPerSecond, py::call_guard<GilReleased>(), "Bytes per second of one pass.");
  module.def("measure_ceilings", &CeilingsOf, py::arg("num_threads"), py::arg("num_bytes"),
             "The most that memory and arithmetic can do with `num_threads` threads.");
  module.def(
      "log_sum_exp",
      [](const py::array_t<float, py::array::c_style>& row) {
        const KernelContext context = {&GetKernelTable(""), &ThreadPool::Shared(), 1};
        return LogSumExp(context, row.data(), row.size());
      },
      py::arg("row"), "log of the sum of exp of a float32 row, in the engine's order.");
  module.def(
      "selected_table", [] { return std::string(GetKernelTable("").name); }, "The kernel table that LLMI_ISA or the machine selects.");
}

}  // namespace llmi

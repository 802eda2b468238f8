#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <chrono>
#include <vector>

#include "bindings/bindings.h"
#include "bindings/engine_handle.h"
#include "core/aligned.h"
#include "core/cpu_features.h"
#include "core/thread_pool.h"
#include "kernels/device.h"
#include "kernels/probe.h"
#include "kernels/tables.h"
#include "kernels/vocab.h"
#include "sampling/edits.h"

namespace py = pybind11;

namespace llmi {

void RegisterSystem(py::module_& module) {
  module.def(
      "system_info",
      [] {
        const CpuFeatures& features = GetCpuFeatures();
        py::dict dict;
        dict["cpu"] = features.brand;
        dict["avx2"] = features.avx2;
        dict["avx512"] = features.avx512;
        dict["avx_vnni"] = features.avx_vnni;
        dict["avx512_bf16"] = features.avx512_bf16;
        dict["tables"] = AvailableTables();
        dict["num_threads"] = ThreadPool::DefaultNumThreads();
        dict["available_memory_bytes"] = AvailableMemoryBytes();
        dict["why_no_cuda"] = WhyNoCuda();
        return dict;
      },
      "What the processor and the system offer.");
  module.def(
      "measure_ceilings",
      [](int num_threads, int64_t num_bytes) {
        const KernelContext context = {&GetKernelTable(""), &ThreadPool::Shared(), num_threads};
        Ceilings ceilings;
        {
          const py::gil_scoped_release release;
          ceilings = MeasureCeilings(context, num_bytes);
        }
        py::dict dict;
        dict["read_bytes_per_s"] = ceilings.read_bytes_per_s;
        dict["fma_ops_per_s"] = ceilings.fma_ops_per_s;
        dict["dots_ops_per_s"] = ceilings.dots_ops_per_s;
        return dict;
      },
      py::arg("num_threads"), py::arg("num_bytes"), "What memory and arithmetic can do at most, with so many threads.");
  module.def(
      "measure_device_copy",
      [](const std::string& name, int64_t num_bytes) {
        const py::gil_scoped_release release;
        const std::unique_ptr<Device> device = OpenDevice(name);
        AlignedBuffer from(static_cast<size_t>(num_bytes), "the copy probe", device.get());
        AlignedBuffer to(static_cast<size_t>(num_bytes), "the copy probe", device.get());
        constexpr int kCopies = 16;
        uint8_t last = 0;
        device->Copy(to.data(), from.data(), to.size());
        device->Download(&last, to.data(), 1);
        const auto start = std::chrono::steady_clock::now();
        for (int i = 0; i < kCopies; ++i) device->Copy(to.data(), from.data(), to.size());
        device->Download(&last, to.data(), 1);
        const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
        return 2.0 * kCopies * static_cast<double>(num_bytes) / seconds;
      },
      py::arg("device"), py::arg("num_bytes"), "Bytes read and written a second by copies within the device.");
  module.def(
      "measure_device_draws",
      [](const std::string& name, const SamplingParams& params, int64_t num_rows, int64_t vocab_size) {
        Validate(params, vocab_size);
        const py::gil_scoped_release release;
        const std::unique_ptr<Device> device = OpenDevice(name);
        std::vector<float> logits(static_cast<size_t>(num_rows * vocab_size));
        for (size_t i = 0; i < logits.size(); ++i)
          logits[i] = static_cast<float>(RaceScore(static_cast<uint32_t>(i * 2654435761u), 0.0f)) * -3.0f;
        AlignedBuffer there(logits.size() * sizeof(float), "the draw probe", device.get());
        device->Upload(there.data(), logits.data(), there.size());
        DrawList draws;
        for (int64_t row = 0; row < num_rows; ++row) draws.Add(params, {}, row, row, vocab_size);
        std::vector<int32_t> tokens(static_cast<size_t>(num_rows));
        const auto draw = [&] { device->Draw(draws.batch(), there.as<float>(), vocab_size, tokens.data()); };
        draw();
        constexpr int kDraws = 16;
        const auto start = std::chrono::steady_clock::now();
        for (int i = 0; i < kDraws; ++i) draw();
        return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / kDraws;
      },
      py::arg("device"), py::arg("params"), py::arg("num_rows"), py::arg("vocab_size"),
      "Seconds of one draw for each row of logits on the device; logits are -3 log E of exponentials E.");
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

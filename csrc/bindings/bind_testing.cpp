// The submodule `testing`: inner classes and ops, for tests and benchmarks. Arrays are exact: float32 and C-contiguous.
#include "bindings/bind_testing.h"

#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "bindings/bindings.h"
#include "kernels/cuda/stream_choices.h"

namespace py = pybind11;

namespace llmi {

std::unique_ptr<Device> OpenTestDevice(const std::string& name) {
  std::string kind = name;
  const auto take = [&](std::string_view suffix) {
    const bool found = kind.ends_with(suffix);
    if (found) kind.resize(kind.size() - suffix.size());
    return found;
  };
  DeviceOptions options;
  constexpr std::string_view kLibrary = "+cublaslt:";
  if (const size_t at = kind.find(kLibrary); at != std::string::npos) {
    options.cublas_lt = kind.substr(at + kLibrary.size());
    kind.resize(at);
  }
  constexpr std::string_view kVariant = "+variant:";
  cuda::forced_stream_variant.reset();
  if (const size_t at = kind.find(kVariant); at != std::string::npos) {
    cuda::forced_stream_variant = cuda::FindStreamVariant(kind.substr(at + kVariant.size()));
    CheckArgument(cuda::forced_stream_variant.has_value(), "a test's device: no such variant");
    kind.resize(at);
  }
  if (take("+tight")) options.most_partial_bytes = 1 << 16;
  options.bf16_linear = take("+bf16");
  options.f16_linear = take("+fp16");
  if (kind == "cuda") return OpenCudaDevice(options);
  CheckArgument(kind == "emulated", "a test's device must be cuda or emulated");
  return OpenEmulatedDevice(options);
}

KernelContext TestContext(const std::string& table, int num_threads) {
  if (!table.starts_with("emulated") && !table.starts_with("cuda")) {
    const size_t name_size = table.find("+bf16");
    return {&GetKernelTable(table.substr(0, name_size)), &ThreadPool::Shared(), num_threads, nullptr, name_size != std::string::npos};
  }
  static std::map<std::string, Device*> devices;  // kept until the process ends
  Device*& device = devices[table];
  if (device == nullptr) device = OpenTestDevice(table).release();
  return {&GetKernelTable("reference"), &ThreadPool::Shared(), num_threads, device};
}

void RegisterTesting(py::module_& module) {
  py::module_ testing = module.def_submodule("testing", "Inner classes and ops, for tests and benchmarks.");
  // So that `import llmi._core.testing` finds it, although _core is not a package.
  py::module_::import("sys").attr("modules")["llmi._core.testing"] = testing;
  RegisterTestingExperts(testing);
  RegisterTestingMixers(testing);
  RegisterTestingLinear(testing);
  RegisterTestingConstraints(testing);
  RegisterTestingPlans(testing);
  RegisterTestingRows(testing);
  RegisterTestingThreads(testing);
  RegisterTestingSampling(testing);
  RegisterDeviceProbes(testing);
  RegisterTestingCache(testing);
  RegisterTestingDecoder(testing);
  RegisterTestingEagle(testing);
  RegisterTestingAttention(testing);
  RegisterTestingScheduler(testing);
  RegisterTestingSpeculative(testing);
}

}  // namespace llmi

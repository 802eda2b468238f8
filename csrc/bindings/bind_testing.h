// Shared by the testing bindings.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <memory>
#include <optional>
#include <string>

#include "core/errors.h"
#include "core/thread_pool.h"
#include "kernels/dispatch/device.h"
#include "kernels/dispatch/tables.h"
#include "kernels/dispatch/transfer.h"
#include "kernels/ops/context.h"

namespace llmi {

using FloatArray = pybind11::array_t<float, pybind11::array::c_style>;

// Opens a device by a name that tests alone use: "cuda" or "emulated", then "+bf16" or "+fp16" for layers of such weights on tensor cores,
// then "+tight" for little memory for the partial sums of attention, or "+cublaslt:PATH". Throws Error(kDevice) where the machine or the
// build lacks it, Error(kInvalidArgument) for other names.
std::unique_ptr<Device> OpenTestDevice(const std::string& name);

// table: one of AvailableTables(), or a name for OpenTestDevice: the ops on that device.
KernelContext TestContext(const std::string& table, int num_threads);

// An array in the memory that the context's ops read and write.
template <typename T>
class Placed {
 public:
  Placed(const KernelContext& context, const T* values, size_t count) : Placed(context, count) {
    if (count > 0) ToDevice(context_, buffer_.data(), values, count * sizeof(T));
  }
  Placed(const KernelContext& context, size_t count) : context_(context), buffer_(count * sizeof(T), "test data", context.device) {}
  T* data() { return buffer_.template as<T>(); }
  void Fetch(T* to) const {
    if (buffer_.size() > 0) ToHost(context_, to, buffer_.data(), buffer_.size());
  }
  pybind11::array_t<T> Fetch() const {
    pybind11::array_t<T> values(static_cast<pybind11::ssize_t>(buffer_.size() / sizeof(T)));
    Fetch(values.mutable_data());
    return values;
  }

 private:
  KernelContext context_;
  AlignedBuffer buffer_;
};

using PlacedFloats = Placed<float>;
inline PlacedFloats Place(const KernelContext& context, const FloatArray& array) {
  return {context, array.data(), static_cast<size_t>(array.size())};
}

void RegisterDeviceProbes(pybind11::module_& module);
void RegisterTestingAttention(pybind11::module_& module);
void RegisterTestingCache(pybind11::module_& module);
void RegisterTestingDecoder(pybind11::module_& module);
void RegisterTestingEagle(pybind11::module_& module);
void RegisterTestingExperts(pybind11::module_& module);
void RegisterTestingLinear(pybind11::module_& module);
void RegisterTestingMixers(pybind11::module_& module);
void RegisterTestingConstraints(pybind11::module_& module);
void RegisterTestingPlans(pybind11::module_& module);
void RegisterTestingRows(pybind11::module_& module);
void RegisterTestingSampling(pybind11::module_& module);
void RegisterTestingScheduler(pybind11::module_& module);
void RegisterTestingSpeculative(pybind11::module_& module);
void RegisterTestingThreads(pybind11::module_& module);

}  // namespace llmi

// Copies between the host and the memory in which a context's ops run: the device's, or, without a device, the host's own.
#pragma once

#include <cstddef>
#include <cstring>

#include "kernels/dispatch/device.h"
#include "kernels/ops/context.h"

namespace llmi {

inline void ToDevice(const KernelContext& context, void* to, const void* from, size_t num_bytes) {
  if (context.device != nullptr) return context.device->Upload(to, from, num_bytes);
  std::memcpy(to, from, num_bytes);
}

inline void ToHost(const KernelContext& context, void* to, const void* from, size_t num_bytes) {
  if (context.device != nullptr) return context.device->Download(to, from, num_bytes);
  std::memcpy(to, from, num_bytes);
}

inline void CopyThere(const KernelContext& context, void* to, const void* from, size_t num_bytes) {
  if (context.device != nullptr) return context.device->Copy(to, from, num_bytes);
  std::memcpy(to, from, num_bytes);
}

}  // namespace llmi

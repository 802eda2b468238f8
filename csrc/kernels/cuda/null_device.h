// A device that keeps memory and runs no kernel: what a step takes is then the host's time. Tokens are all 0, logits are zeros.
#pragma once

#include <atomic>
#include <memory>

#include "kernels/dispatch/device.h"

namespace llmi {

std::unique_ptr<Device> OpenNullDevice(const DeviceOptions& options);

// Whether OpenEmulatedDevice opens null devices.
inline std::atomic<bool> opens_null_devices{false};

}  // namespace llmi

// Builds without LLMI_TESTING.
#include "core/errors.h"
#include "kernels/dispatch/device.h"

namespace llmi {

std::unique_ptr<Device> OpenEmulatedDevice(const DeviceOptions&) {
  throw Error(ErrorKind::kDevice,
              "LLMI_EMULATE_CUDA=1, but this build has no emulated device: unset it, or build from source with "
              "pip install . --config-settings=cmake.define.LLMI_TESTING=ON",
              "device");
}

}  // namespace llmi

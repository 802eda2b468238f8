// Builds without CUDA.
#include "core/errors.h"
#include "kernels/cuda/matrix_probe.h"
#include "kernels/dispatch/device.h"

namespace llmi {

std::string WhyNoCuda() {
  return "this build has no CUDA backend: use device='cpu', or build with a CUDA toolkit of 12.8 or later: "
         "pip install . --config-settings=cmake.define.LLMI_CUDA=ON";
}

std::unique_ptr<Device> OpenCudaDevice(const DeviceOptions&) { throw Error(ErrorKind::kDevice, WhyNoCuda(), "device"); }

std::vector<cuda::MatrixInstruction> cuda::CudaMatrixInstructions() { throw Error(ErrorKind::kDevice, WhyNoCuda(), "device"); }

}  // namespace llmi

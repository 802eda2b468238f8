// StreamLinearKernel for codes of 4 bits with a scale, and perhaps a minimum, for each block.
#include "kernels/cuda/cuda_launcher.cuh"

namespace llmi::cuda {

template void LaunchStream<PackedType::kQ4>(CudaLauncher&, const StreamGrid&, const LinearOutput&, const Int8Rows&);
template void LaunchStream<PackedType::kQ4Min>(CudaLauncher&, const StreamGrid&, const LinearOutput&, const Int8Rows&);

}  // namespace llmi::cuda

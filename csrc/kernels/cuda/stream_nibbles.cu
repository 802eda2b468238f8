// StreamLinearKernel for codes of 4 bits with a scale, and perhaps a minimum, for each block.
#include "kernels/cuda/cuda_launcher.cuh"

namespace llmi::cuda {

template void LaunchStream<PackedType::kQ4>(CudaLauncher&, const LinearOutput&, const StreamInput&);
template void LaunchStream<PackedType::kQ4Min>(CudaLauncher&, const LinearOutput&, const StreamInput&);

}  // namespace llmi::cuda

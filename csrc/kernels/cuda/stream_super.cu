// StreamLinearKernel for super-blocks.
#include "kernels/cuda/cuda_launcher.cuh"

namespace llmi::cuda {

template void LaunchStream<PackedType::kQ4K>(CudaLauncher&, const LinearOutput&, const StreamInput&);
template void LaunchStream<PackedType::kQ5K>(CudaLauncher&, const LinearOutput&, const StreamInput&);
template void LaunchStream<PackedType::kQ6K>(CudaLauncher&, const LinearOutput&, const StreamInput&);

}  // namespace llmi::cuda

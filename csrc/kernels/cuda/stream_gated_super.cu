// StreamGatedKernel for super-blocks.
#include "kernels/cuda/cuda_launcher.cuh"

namespace llmi::cuda {

template void LaunchStream<PackedType::kQ4K>(CudaLauncher&, const GatedOutput&, const StreamInput&);
template void LaunchStream<PackedType::kQ5K>(CudaLauncher&, const GatedOutput&, const StreamInput&);
template void LaunchStream<PackedType::kQ6K>(CudaLauncher&, const GatedOutput&, const StreamInput&);

}  // namespace llmi::cuda

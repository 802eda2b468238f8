// StreamGatedKernel for codes of 4 bits with a scale, and perhaps a minimum, for each block.
#include "kernels/cuda/cuda_launcher.cuh"

namespace llmi::cuda {

template void LaunchStream<PackedType::kQ4>(CudaLauncher&, const GatedOutput&, const StreamInput&);
template void LaunchStream<PackedType::kQ4Min>(CudaLauncher&, const GatedOutput&, const StreamInput&);

}  // namespace llmi::cuda

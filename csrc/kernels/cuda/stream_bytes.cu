// StreamKernel for codes of 5 and 8 bits with a scale, and perhaps a minimum, for each block.
#include "kernels/cuda/cuda_launcher.cuh"

namespace llmi::cuda {

template void LaunchStream<PackedType::kQ5>(CudaLauncher&, const LinearOutput&, const StreamInput&);
template void LaunchStream<PackedType::kQ5Min>(CudaLauncher&, const LinearOutput&, const StreamInput&);
template void LaunchStream<PackedType::kQ8>(CudaLauncher&, const LinearOutput&, const StreamInput&);
template void LaunchStream<PackedType::kQ5>(CudaLauncher&, const GatedOutput&, const StreamInput&);
template void LaunchStream<PackedType::kQ5Min>(CudaLauncher&, const GatedOutput&, const StreamInput&);
template void LaunchStream<PackedType::kQ8>(CudaLauncher&, const GatedOutput&, const StreamInput&);

}  // namespace llmi::cuda

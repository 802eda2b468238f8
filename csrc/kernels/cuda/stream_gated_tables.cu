// StreamGatedKernel for codes of a table.
#include "kernels/cuda/cuda_launcher.cuh"

namespace llmi::cuda {

template void LaunchStream<PackedType::kTable>(CudaLauncher&, const GatedOutput&, const StreamInput&);
template void LaunchStream<PackedType::kTableK>(CudaLauncher&, const GatedOutput&, const StreamInput&);
template void LaunchStream<PackedType::kTableExp>(CudaLauncher&, const GatedOutput&, const StreamInput&);

}  // namespace llmi::cuda

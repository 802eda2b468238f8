// StreamLinearKernel for codes of a table.
#include "kernels/cuda/cuda_launcher.cuh"

namespace llmi::cuda {

template void LaunchStream<PackedType::kTable>(CudaLauncher&, const LinearOutput&, const StreamInput&);
template void LaunchStream<PackedType::kTableK>(CudaLauncher&, const LinearOutput&, const StreamInput&);
template void LaunchStream<PackedType::kTableExp>(CudaLauncher&, const LinearOutput&, const StreamInput&);

}  // namespace llmi::cuda

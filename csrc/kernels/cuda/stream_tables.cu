// StreamLinearKernel for codes of a table.
#include "kernels/cuda/cuda_launcher.cuh"

namespace llmi::cuda {

template void LaunchStream<PackedType::kTable>(CudaLauncher&, const StreamGrid&, const LinearOutput&, const Int8Rows&);
template void LaunchStream<PackedType::kTableK>(CudaLauncher&, const StreamGrid&, const LinearOutput&, const Int8Rows&);
template void LaunchStream<PackedType::kTableExp>(CudaLauncher&, const StreamGrid&, const LinearOutput&, const Int8Rows&);

}  // namespace llmi::cuda

// StreamLinearKernel for codes of a table.
#include "kernels/cuda/cuda_launcher.cuh"

namespace llmi::cuda {

template void LaunchStream<PackedType::kTable>(CudaLauncher&, int, const LinearOutput&, const Int8Rows&);
template void LaunchStream<PackedType::kTableK>(CudaLauncher&, int, const LinearOutput&, const Int8Rows&);
template void LaunchStream<PackedType::kTableExp>(CudaLauncher&, int, const LinearOutput&, const Int8Rows&);

}  // namespace llmi::cuda

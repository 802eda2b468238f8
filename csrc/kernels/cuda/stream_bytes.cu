// StreamLinearKernel for codes of 5 and 8 bits with a scale, and perhaps a minimum, for each block.
#include "kernels/cuda/cuda_launcher.cuh"

namespace llmi::cuda {

template void LaunchStream<PackedType::kQ5>(CudaLauncher&, const StreamGrid&, const LinearOutput&, const Int8Rows&);
template void LaunchStream<PackedType::kQ5Min>(CudaLauncher&, const StreamGrid&, const LinearOutput&, const Int8Rows&);
template void LaunchStream<PackedType::kQ8>(CudaLauncher&, const StreamGrid&, const LinearOutput&, const Int8Rows&);

}  // namespace llmi::cuda

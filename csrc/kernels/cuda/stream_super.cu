// StreamLinearKernel for super-blocks.
#include "kernels/cuda/cuda_launcher.cuh"

namespace llmi::cuda {

template void LaunchStream<PackedType::kQ4K>(CudaLauncher&, const StreamGrid&, const LinearOutput&, const Int8Rows&);
template void LaunchStream<PackedType::kQ5K>(CudaLauncher&, const StreamGrid&, const LinearOutput&, const Int8Rows&);
template void LaunchStream<PackedType::kQ6K>(CudaLauncher&, const StreamGrid&, const LinearOutput&, const Int8Rows&);

}  // namespace llmi::cuda

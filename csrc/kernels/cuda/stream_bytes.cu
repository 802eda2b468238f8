// StreamLinearKernel for codes of 8 bits.
#include "kernels/cuda/cuda_launcher.cuh"

namespace llmi::cuda {

template void LaunchStream<PackedType::kQ8>(CudaLauncher&, int, const LinearOutput&, const Int8Rows&);

}  // namespace llmi::cuda

// StreamHalfKernel and StreamFloatKernel.
#include "kernels/cuda/cuda_launcher.cuh"

namespace llmi::cuda {

template void LaunchStreamHalf<HalfFormat::kBF16>(CudaLauncher&, int, const LinearOutput&, const FloatRows&, const NormArgs&,
                                                  const uint8_t*);
template void LaunchStreamHalf<HalfFormat::kF16>(CudaLauncher&, int, const LinearOutput&, const FloatRows&, const NormArgs&,
                                                 const uint8_t*);
template void LaunchStreamFloat<PackedType::kF32>(CudaLauncher&, int, const LinearOutput&, const FloatRows&, const NormArgs&);
template void LaunchStreamFloat<PackedType::kF16>(CudaLauncher&, int, const LinearOutput&, const FloatRows&, const NormArgs&);
template void LaunchStreamFloat<PackedType::kBF16>(CudaLauncher&, int, const LinearOutput&, const FloatRows&, const NormArgs&);

}  // namespace llmi::cuda

// PromptLinearKernel.
#include "kernels/cuda/cuda_launcher.cuh"

namespace llmi::cuda {

template void LaunchPrompt<PackedType::kQ4>(CudaLauncher&, const LinearOutput&, const QuantizedRows&);
template void LaunchPrompt<PackedType::kQ4Min>(CudaLauncher&, const LinearOutput&, const QuantizedRows&);
template void LaunchPrompt<PackedType::kQ4K>(CudaLauncher&, const LinearOutput&, const QuantizedRows&);
template void LaunchPrompt<PackedType::kQ6K>(CudaLauncher&, const LinearOutput&, const QuantizedRows&);
template void LaunchPrompt<PackedType::kQ8>(CudaLauncher&, const LinearOutput&, const QuantizedRows&);

}  // namespace llmi::cuda

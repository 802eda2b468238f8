// PromptAttentionKernel.
#include "kernels/cuda/cuda_launcher.cuh"

namespace llmi::cuda {

template void LaunchPromptAttention(CudaLauncher&, const AttentionPlan&, const RowGroup*, int64_t);

}  // namespace llmi::cuda

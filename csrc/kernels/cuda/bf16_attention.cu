// The kernels of bf16 attention on tensor cores.
#include "kernels/cuda/cuda_launcher.cuh"

namespace llmi::cuda {

template void LaunchBf16Spans<false>(CudaLauncher&, int, const AttentionPlan&);
template void LaunchBf16Spans<true>(CudaLauncher&, int, const AttentionPlan&);
template void LaunchWholeGroups(CudaLauncher&, const AttentionPlan&, const RowGroup*, int64_t);

}  // namespace llmi::cuda

// The kernels of bf16 attention on tensor cores.
#include "kernels/cuda/cuda_launcher.cuh"

namespace llmi::cuda {

template void LaunchBf16Spans<2, false>(CudaLauncher&, const AttentionPlan&, const RowGroup&);
template void LaunchBf16Spans<2, true>(CudaLauncher&, const AttentionPlan&, const RowGroup&);
template void LaunchWholeGroups(CudaLauncher&, const AttentionPlan&, const RowGroup*, int64_t);

}  // namespace llmi::cuda

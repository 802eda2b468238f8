// SpanKernel over fp16 and fp32 caches.
#include "kernels/cuda/cuda_launcher.cuh"

namespace llmi::cuda {

template void LaunchOrderedSpans<KvType::kF16>(CudaLauncher&, int, const AttentionPlan&);
template void LaunchOrderedSpans<KvType::kF32>(CudaLauncher&, int, const AttentionPlan&);

}  // namespace llmi::cuda

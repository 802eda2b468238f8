// SpanKernel over int8 and fp8 caches.
#include "kernels/cuda/cuda_launcher.cuh"

namespace llmi::cuda {

template void LaunchOrderedSpans<KvType::kInt8>(CudaLauncher&, int, const AttentionPlan&);
template void LaunchOrderedSpans<KvType::kF8>(CudaLauncher&, int, const AttentionPlan&);

}  // namespace llmi::cuda

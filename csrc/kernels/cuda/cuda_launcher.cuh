// Launches of kernels on a stream of CUDA, for the files that nvcc compiles.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "core/errors.h"
#include "kernels/cuda/block.h"
#include "kernels/cuda/span_launch.h"
#include "kernels/cuda/stream_float_launch.h"
#include "kernels/cuda/stream_launch.h"

namespace llmi::cuda {

inline void Check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // clears an error that is not sticky
  throw Error(ErrorKind::kDevice, std::string("CUDA: ") + what + ": " + cudaGetErrorString(status));
}

template <typename Kernel>
constexpr int MostRegisters() {
  if constexpr (requires { Kernel::kMostRegisters; }) return Kernel::kMostRegisters;
  return 65536 / kMostThreads;
}

// Bounds the registers directly: with a bound on the threads of a block, the compiler spills small kernels to make room for more blocks.
template <typename Kernel>
__global__ void __maxnreg__(MostRegisters<Kernel>()) Run(const __grid_constant__ Kernel kernel) {
  extern __shared__ __align__(16) uint8_t shared[];
  kernel(DeviceBlock{blockIdx.x, blockIdx.y, static_cast<int>(blockDim.x), shared});
}

class CudaLauncher {
 public:
  template <typename Kernel>
  void Launch(int64_t grid_x, int64_t grid_y, int num_threads, size_t shared_bytes, const Kernel& kernel) {
    const dim3 grid(static_cast<unsigned>(grid_x), static_cast<unsigned>(grid_y));
    if (shared_bytes > 48 * 1024) {  // the most that a launch has by default
      Check(cudaFuncSetAttribute(Run<Kernel>, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes)),
            "shared memory of a kernel");
    }
    Run<<<grid, static_cast<unsigned>(num_threads), shared_bytes, stream_>>>(kernel);
    Check(cudaGetLastError(), "a launch");
  }

 protected:
  cudaStream_t stream_ = nullptr;
};

// Each is compiled in one of the files stream_*.cu, prompt_*.cu, spans_*.cu and bf16_attention.cu, so that they compile side by side.
extern template void LaunchStream<PackedType::kQ4>(CudaLauncher&, const LinearOutput&, const StreamInput&);
extern template void LaunchStream<PackedType::kQ4Min>(CudaLauncher&, const LinearOutput&, const StreamInput&);
extern template void LaunchStream<PackedType::kQ4K>(CudaLauncher&, const LinearOutput&, const StreamInput&);
extern template void LaunchStream<PackedType::kQ5>(CudaLauncher&, const LinearOutput&, const StreamInput&);
extern template void LaunchStream<PackedType::kQ5Min>(CudaLauncher&, const LinearOutput&, const StreamInput&);
extern template void LaunchStream<PackedType::kQ5K>(CudaLauncher&, const LinearOutput&, const StreamInput&);
extern template void LaunchStream<PackedType::kQ6K>(CudaLauncher&, const LinearOutput&, const StreamInput&);
extern template void LaunchStream<PackedType::kTable>(CudaLauncher&, const LinearOutput&, const StreamInput&);
extern template void LaunchStream<PackedType::kTableK>(CudaLauncher&, const LinearOutput&, const StreamInput&);
extern template void LaunchStream<PackedType::kTableExp>(CudaLauncher&, const LinearOutput&, const StreamInput&);
extern template void LaunchStream<PackedType::kQ8>(CudaLauncher&, const LinearOutput&, const StreamInput&);
extern template void LaunchStream<PackedType::kQ4>(CudaLauncher&, const GatedOutput&, const StreamInput&);
extern template void LaunchStream<PackedType::kQ4Min>(CudaLauncher&, const GatedOutput&, const StreamInput&);
extern template void LaunchStream<PackedType::kQ4K>(CudaLauncher&, const GatedOutput&, const StreamInput&);
extern template void LaunchStream<PackedType::kQ5>(CudaLauncher&, const GatedOutput&, const StreamInput&);
extern template void LaunchStream<PackedType::kQ5Min>(CudaLauncher&, const GatedOutput&, const StreamInput&);
extern template void LaunchStream<PackedType::kQ5K>(CudaLauncher&, const GatedOutput&, const StreamInput&);
extern template void LaunchStream<PackedType::kQ6K>(CudaLauncher&, const GatedOutput&, const StreamInput&);
extern template void LaunchStream<PackedType::kTable>(CudaLauncher&, const GatedOutput&, const StreamInput&);
extern template void LaunchStream<PackedType::kTableK>(CudaLauncher&, const GatedOutput&, const StreamInput&);
extern template void LaunchStream<PackedType::kTableExp>(CudaLauncher&, const GatedOutput&, const StreamInput&);
extern template void LaunchStream<PackedType::kQ8>(CudaLauncher&, const GatedOutput&, const StreamInput&);
extern template void LaunchPrompt<PackedType::kQ4>(CudaLauncher&, const LinearOutput&, const QuantizedRows&);
extern template void LaunchPrompt<PackedType::kQ4Min>(CudaLauncher&, const LinearOutput&, const QuantizedRows&);
extern template void LaunchPrompt<PackedType::kQ4K>(CudaLauncher&, const LinearOutput&, const QuantizedRows&);
extern template void LaunchPrompt<PackedType::kQ6K>(CudaLauncher&, const LinearOutput&, const QuantizedRows&);
extern template void LaunchPrompt<PackedType::kQ8>(CudaLauncher&, const LinearOutput&, const QuantizedRows&);
extern template void LaunchStreamHalf<HalfFormat::kBF16>(CudaLauncher&, int, const LinearOutput&, const FloatRows&, const NormArgs&,
                                                         const uint8_t*);
extern template void LaunchStreamHalf<HalfFormat::kF16>(CudaLauncher&, int, const LinearOutput&, const FloatRows&, const NormArgs&,
                                                        const uint8_t*);
extern template void LaunchStreamFloat<PackedType::kF32>(CudaLauncher&, int, const LinearOutput&, const FloatRows&, const NormArgs&);
extern template void LaunchStreamFloat<PackedType::kF16>(CudaLauncher&, int, const LinearOutput&, const FloatRows&, const NormArgs&);
extern template void LaunchStreamFloat<PackedType::kBF16>(CudaLauncher&, int, const LinearOutput&, const FloatRows&, const NormArgs&);
extern template void LaunchOrderedSpans<KvType::kF16>(CudaLauncher&, int, const AttentionPlan&);
extern template void LaunchOrderedSpans<KvType::kF32>(CudaLauncher&, int, const AttentionPlan&);
extern template void LaunchOrderedSpans<KvType::kInt8>(CudaLauncher&, int, const AttentionPlan&);
extern template void LaunchOrderedSpans<KvType::kF8>(CudaLauncher&, int, const AttentionPlan&);
extern template void LaunchBf16Spans<false>(CudaLauncher&, int, const AttentionPlan&);
extern template void LaunchBf16Spans<true>(CudaLauncher&, int, const AttentionPlan&);
extern template void LaunchPromptAttention(CudaLauncher&, const AttentionPlan&, const RowGroup*, int64_t);
extern template void LaunchWholeGroups(CudaLauncher&, const AttentionPlan&, const RowGroup*, int64_t);

}  // namespace llmi::cuda

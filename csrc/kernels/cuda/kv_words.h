// Neighbouring elements of a tile of the KV cache as fp32, by the GPU's own conversions. A bf16 cache has other tiles and is not for these.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "core/dtype.h"
#include "core/float8.h"
#include "kernels/cuda/half_format.h"

#ifdef __CUDACC__
#include <cuda_fp8.h>
#endif

namespace llmi::cuda {

// Words that one load reads.
template <typename T, int kCount>
struct alignas(sizeof(T) * static_cast<size_t>(kCount)) Words {
  T of[static_cast<size_t>(kCount)];
};

// Two codes of e4m3.
LLMI_HD inline void WidenFloat8(uint32_t codes, float* values) {
#ifdef __CUDA_ARCH__
  const __half2_raw halves = __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(codes), __NV_E4M3);
  values[0] = HalfBitsToFloat(halves.x);
  values[1] = HalfBitsToFloat(halves.y);
#else
  values[0] = Float8ToFloat(static_cast<uint8_t>(codes));
  values[1] = Float8ToFloat(static_cast<uint8_t>(codes >> 8));
#endif
}

// kCount elements from `from` on, 2 or 4; of an int8 cache codes without their scales.
template <KvType kType, int kCount>
LLMI_HD void WidenElements(const uint8_t* from, float* values) {
  constexpr int kBytes = kCount * static_cast<int>(KvTypeBytes(kType));
  using Word = std::conditional_t<kBytes == 2, uint16_t, uint32_t>;
  constexpr int kPerWord = static_cast<int>(sizeof(Word) / KvTypeBytes(kType));
  const auto words = *reinterpret_cast<const Words<Word, kBytes / static_cast<int>(sizeof(Word))>*>(from);
  LLMI_UNROLL
  for (int i = 0; i < kCount; ++i) {
    const uint32_t word = words.of[i / kPerWord];
    if constexpr (kType == KvType::kF32) {
      values[i] = __builtin_bit_cast(float, word);
    } else if constexpr (kType == KvType::kF16) {
      values[i] = HalfBitsToFloat(static_cast<uint16_t>(word >> (16 * (i % 2))));
    } else if constexpr (kType == KvType::kInt8) {
      values[i] = static_cast<float>(static_cast<int8_t>(word >> (8 * (i % 4))));
    } else if (i % 2 == 0) {
      WidenFloat8(word >> (8 * (i % 4)) & 0xFFFFu, values + i);
    }
  }
}

}  // namespace llmi::cuda

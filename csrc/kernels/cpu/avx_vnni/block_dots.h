// Integer dots of a packed block by VPDPBUSD over 32 bytes, as avx512/block_dots.h has them over 64. Exact.
#pragma once

#include "kernels/cpu/avx2/codes.h"

namespace llmi::avx_vnni {
namespace {

constexpr int kLinearRows = 4;
constexpr int kFloatTiles = 2;  // as avx2's
constexpr int kFloatRows = 2;

// The one instruction; a test builds this file for AVX-512's form of it, which more machines can run.
inline __m256i Dot(__m256i total, __m256i w, __m256i a) {
#ifdef __AVXVNNI__
  return _mm256_dpbusd_avx_epi32(total, w, a);
#else
  return _mm256_dpbusd_epi32(total, w, a);
#endif
}

template <PackedType T, int MR, int kDots>
void BlockDots(const uint8_t* codes, const QuantizedRows& x, int64_t row, int64_t block, int64_t num_blocks, F32x16* dots) {
  constexpr bool kFourBit = T == PackedType::kQ4 || T == PackedType::kQ4Min || T == PackedType::kQ4MinF32;
  constexpr int32_t kOffset = T == PackedType::kQ4 ? 8 : kFourBit ? 0 : 128;
  for (int half = 0; half < 2; ++half) {  // rows 0 to 7, then 8 to 15 of the tile
    __m256i w[8];
    if constexpr (kFourBit) {
      LoadNibbles(codes + 32 * half, w);
    } else {
      for (int i = 0; i < 8; ++i) w[i] = LoadCodes(codes + 32 * half, i);
    }
    for (int m = 0; m < MR; ++m) {
      const int64_t x_block = (row + m) * num_blocks + block;
      const int8_t* a = x.codes + x_block * kBlockSize;
      const int32_t* half_sums = x.half_sums + 2 * x_block;
      for (int dot = 0; dot < kDots; ++dot) {
        const int32_t sum = kDots == 2 ? half_sums[dot] : half_sums[0] + half_sums[1];
        __m256i total = kOffset != 0 ? _mm256_set1_epi32(-kOffset * sum) : _mm256_setzero_si256();
        for (int i = dot * (8 / kDots); i < (dot + 1) * (8 / kDots); ++i) total = Dot(total, w[i], BroadcastFour(a + 4 * i));
        F32x16& out = dots[m * kDots + dot];
        (half == 0 ? out.lo : out.hi) = _mm256_cvtepi32_ps(total);
      }
    }
  }
}

}  // namespace
}  // namespace llmi::avx_vnni

// Integer dots of a packed block by VPMADDUBSW, which saturates at 16 bits. 4-bit codes are the unsigned operand:
// eight pairs reach 8 x 2 x 15 x 127 = 30,480 and stay below 32,768. 8-bit codes become signed weights w, and
// |w| x sign(a, w) keeps each pair at 2 x 128 x 127 = 32,512 or less. Exact in both cases.
#pragma once

#include "kernels/cpu/avx2/codes.h"

namespace llmi::avx2 {
namespace {

constexpr int kLinearRows = 8;  // sums in memory cost less than unpacking the weights twice

inline __m256i BroadcastFour(const int8_t* a) {
  int32_t four;
  __builtin_memcpy(&four, a, 4);
  return _mm256_set1_epi32(four);
}

template <PackedType T, int MR, int kDots>
void BlockDots(const uint8_t* codes, const QuantizedRows& x, int64_t row, int64_t block, int64_t num_blocks, F32x16* dots) {
  constexpr bool kFourBit = IsFourBitPacked(T);
  constexpr int32_t kOffset = T == PackedType::kQ4 ? 8 : 0;  // the 8-bit codes are made signed below
  const __m256i ones = _mm256_set1_epi16(1);
  for (int half = 0; half < 2; ++half) {  // rows 0 to 7, then 8 to 15 of the tile
    __m256i w[8];
    __m256i magnitude[8];
    if constexpr (kFourBit) {
      LoadNibbles(codes + 32 * half, w);
    } else {
      for (int i = 0; i < 8; ++i) {
        w[i] = _mm256_xor_si256(LoadCodes(codes + 32 * half, i), _mm256_set1_epi8(-128));
        magnitude[i] = _mm256_abs_epi8(w[i]);
      }
    }
    for (int m = 0; m < MR; ++m) {
      const int64_t x_block = (row + m) * num_blocks + block;
      const int8_t* a = x.codes + x_block * kBlockSize;
      for (int dot = 0; dot < kDots; ++dot) {
        __m256i total;
        if constexpr (kFourBit) {
          const int first = dot * (8 / kDots);
          __m256i pairs = _mm256_maddubs_epi16(w[first], BroadcastFour(a + 4 * first));
          for (int i = first + 1; i < first + 8 / kDots; ++i) {
            pairs = _mm256_add_epi16(pairs, _mm256_maddubs_epi16(w[i], BroadcastFour(a + 4 * i)));
          }
          total = _mm256_madd_epi16(pairs, ones);
          if constexpr (kOffset != 0) {
            const int32_t* half_sums = x.half_sums + 2 * x_block;
            const int32_t sum = kDots == 2 ? half_sums[dot] : half_sums[0] + half_sums[1];
            total = _mm256_sub_epi32(total, _mm256_set1_epi32(kOffset * sum));
          }
        } else {
          total = _mm256_setzero_si256();
          for (int i = dot * (8 / kDots); i < (dot + 1) * (8 / kDots); ++i) {
            const __m256i pairs = _mm256_maddubs_epi16(magnitude[i], _mm256_sign_epi8(BroadcastFour(a + 4 * i), w[i]));
            total = _mm256_add_epi32(total, _mm256_madd_epi16(pairs, ones));
          }
        }
        F32x16& out = dots[m * kDots + dot];
        (half == 0 ? out.lo : out.hi) = _mm256_cvtepi32_ps(total);
      }
    }
  }
}

}  // namespace
}  // namespace llmi::avx2

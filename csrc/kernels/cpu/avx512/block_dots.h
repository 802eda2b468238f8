// Integer dots of a packed block by VPDPBUSD: codes are the unsigned operand, activations the signed one, and the
// offset enters as the accumulator's start, -offset x (sum of the block's activation codes). Exact.
#pragma once

namespace llmi::avx512 {
namespace {

constexpr int kLinearRows = 8;  // rows of x per pass over a tile: 8 sums + 8 weight registers of 32
constexpr int kFloatTiles = 4;  // 4 x 4 sums + 4 broadcasts
constexpr int kFloatRows = 4;

template <PackedType T, int MR, int kDots>
void BlockDots(const uint8_t* codes, const QuantizedRows& x, int64_t row, int64_t block, int64_t num_blocks, F32x16* dots) {
  constexpr bool kFourBit = T == PackedType::kQ4 || T == PackedType::kQ4Min || T == PackedType::kQ4MinF32;
  constexpr int32_t kOffset = T == PackedType::kQ4 ? 8 : kFourBit ? 0 : 128;
  __m512i w[8];
  if constexpr (kFourBit) {
    const __m512i mask = _mm512_set1_epi8(15);
    for (int i = 0; i < 4; ++i) {
      const __m512i both = _mm512_loadu_si512(codes + 64 * i);
      w[i] = _mm512_and_si512(both, mask);
      w[i + 4] = _mm512_and_si512(_mm512_srli_epi16(both, 4), mask);
    }
  } else {
    for (int i = 0; i < 8; ++i) w[i] = _mm512_loadu_si512(codes + 64 * i);
  }
  for (int m = 0; m < MR; ++m) {
    const int64_t x_block = (row + m) * num_blocks + block;
    const int8_t* a = x.codes + x_block * kBlockSize;
    const int32_t* half_sums = x.half_sums + 2 * x_block;
    for (int dot = 0; dot < kDots; ++dot) {
      const int32_t sum = kDots == 2 ? half_sums[dot] : half_sums[0] + half_sums[1];
      __m512i total = kOffset != 0 ? _mm512_set1_epi32(-kOffset * sum) : _mm512_setzero_si512();
      for (int i = dot * (8 / kDots); i < (dot + 1) * (8 / kDots); ++i) {
        int32_t four;
        __builtin_memcpy(&four, a + 4 * i, 4);
        total = _mm512_dpbusd_epi32(total, w[i], _mm512_set1_epi32(four));
      }
      dots[m * kDots + dot] = {_mm512_cvtepi32_ps(total)};
    }
  }
}

}  // namespace
}  // namespace llmi::avx512

// Unpacks a block's codes into registers of 64 bytes for VnniDots (simd/vnni_dots-inl.h).
#pragma once

#include "kernels/cpu/simd/vnni_dots-inl.h"

namespace llmi::avx512 {
namespace {

constexpr int kLinearRows = 8;  // rows of x per pass over a tile: 8 sums + 8 weight registers of 32
constexpr int LinearRows(PackedType /*type*/, ActivationForm /*form*/) { return kLinearRows; }
constexpr bool kHardwarePrefetchesOneRow = true;

struct Vnni {
  static __m512i Broadcast(int32_t x) { return _mm512_set1_epi32(x); }
  static __m512i Add256(__m512i low, __m512i high) { return _mm512_add_epi32(low, _mm512_slli_epi32(high, 8)); }
  static __m512i Dot(__m512i total, __m512i w, __m512i a) { return _mm512_dpbusd_epi32(total, w, a); }
};

template <PackedType T, int MR, int kDots, bool kLow>
void BlockDots(const uint8_t* codes, const ActivationBlock<MR>& x, F32x16* dots) {
  constexpr int kHighBits = PackedHighBits(T);
  __m512i w[8];
  if constexpr (T == PackedType::kQ8) {
    for (int i = 0; i < 8; ++i) w[i] = _mm512_loadu_si512(codes + 64 * i);
  } else {
    const __m512i mask = _mm512_set1_epi8(15);
    for (int i = 0; i < 4; ++i) {
      const __m512i both = _mm512_loadu_si512(codes + 64 * i);
      w[i] = _mm512_and_si512(both, mask);
      w[i + 4] = _mm512_and_si512(_mm512_srli_epi16(both, 4), mask);
    }
  }
  if constexpr (kHighBits > 0) {
    const __m512i mask = _mm512_set1_epi8(((1 << kHighBits) - 1) << 4);
    for (int i = 0; i < 8; ++i) {
      const __m512i high = _mm512_loadu_si512(codes + 256 + i * kHighBits / 8 * 64);
      const int bit = i * kHighBits % 8;
      const __m512i moved = bit < 4 ? _mm512_slli_epi16(high, 4 - bit) : _mm512_srli_epi16(high, bit - 4);
      w[i] = _mm512_ternarylogic_epi64(w[i], moved, mask, 0xF8);  // w | (moved & mask)
    }
  }
  VnniDots<Vnni, T, MR, kDots, kLow>(w, x, [&](int index, __m512i total) { dots[index] = {_mm512_cvtepi32_ps(total)}; });
}

}  // namespace
}  // namespace llmi::avx512

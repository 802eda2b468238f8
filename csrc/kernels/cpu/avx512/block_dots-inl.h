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

// What a table has for codes, plus 128.
template <PackedType T>
struct CodeLookup {
  explicit CodeLookup(const CodeTable& codes) {
    const __m128i both = _mm_set_epi64x(static_cast<int64_t>(codes.high), static_cast<int64_t>(codes.low));
    table = _mm512_broadcast_i32x4(_mm_xor_si128(both, _mm_set1_epi8(-128)));
  }
  __m512i operator()(__m512i codes) const {
    if constexpr (IsTablePacked(T)) return _mm512_shuffle_epi8(table, codes);
    return codes;
  }
  __m512i table;
};

// Bits [from, from + count) of a byte.
constexpr char BitMask(int count, int from) { return static_cast<char>(((1 << count) - 1) << from); }

// Each byte's bits from kFrom on, moved to kTo; the other bits are of any value.
template <int kFrom, int kTo>
inline __m512i MoveBits(__m512i bytes) {
  if constexpr (kFrom == kTo) return bytes;
  if constexpr (kFrom < kTo) return _mm512_slli_epi16(bytes, kTo - kFrom);
  return _mm512_srli_epi16(bytes, kFrom - kTo);
}

// Group i of four columns of a block's codes.
template <PackedType T, int i>
inline __m512i LoadGroup(const uint8_t* codes) {
  constexpr int kLow = PackedLowBits(T);
  constexpr int kHigh = PackedHighBits(T);
  __m512i w = _mm512_loadu_si512(codes + 64 * (i % kLow));
  if constexpr (kLow == 8) return w;
  w = _mm512_and_si512(MoveBits<i - i % kLow, 0>(w), _mm512_set1_epi8(BitMask(kLow, 0)));
  if constexpr (kHigh > 0) {
    const __m512i high = MoveBits<i * kHigh % 8, kLow>(_mm512_loadu_si512(codes + 64 * (kLow + i * kHigh / 8)));
    w = _mm512_ternarylogic_epi64(w, high, _mm512_set1_epi8(BitMask(kHigh, kLow)), 0xF8);  // w | (high & mask)
  }
  return w;
}

template <PackedType T, int MR, int kDots, bool kLow>
void BlockDots(const uint8_t* codes, const CodeLookup<T>& lookup, const ActivationBlock<MR>& x, F32x16* dots) {
  const __m512i w[8] = {lookup(LoadGroup<T, 0>(codes)), lookup(LoadGroup<T, 1>(codes)), lookup(LoadGroup<T, 2>(codes)),
                        lookup(LoadGroup<T, 3>(codes)), lookup(LoadGroup<T, 4>(codes)), lookup(LoadGroup<T, 5>(codes)),
                        lookup(LoadGroup<T, 6>(codes)), lookup(LoadGroup<T, 7>(codes))};
  VnniDots<Vnni, T, MR, kDots, kLow>(w, x, [&](int index, __m512i total) { dots[index] = {_mm512_cvtepi32_ps(total)}; });
}

}  // namespace
}  // namespace llmi::avx512

// Integer dots of a packed block by VPDPBUSD: codes are the unsigned operand, activations the signed one, and the offset enters as the
// accumulator's start, -offset x (sum of the activation codes). Exact. Low bytes have separate sums, which begin with the offset; the
// sums of high bytes begin with zero and count 256 times. What a table has for a code is made unsigned by adding 128, its offset.
#pragma once

#include "kernels/cpu/simd/activation_block-inl.h"

namespace llmi::avx512 {
namespace {

constexpr int kLinearRows = 8;  // rows of x per pass over a tile: 8 sums + 8 weight registers of 32
constexpr int LinearRows(PackedType /*type*/, ActivationForm /*form*/) { return kLinearRows; }
constexpr bool kHardwarePrefetchesOneRow = true;

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

// A block's codes. A vector of several groups is loaded once: left alone, the compiler loads it again for each group, and loads limit a
// pass of one row.
template <PackedType T>
struct CodeVectors {
  static constexpr int kCount = PackedLowBits(T) + PackedHighBits(T);

  explicit CodeVectors(const uint8_t* codes) {
#pragma GCC unroll 8
    for (int i = 0; i < kCount; ++i) {
      vectors[i] = _mm512_loadu_si512(codes + 64 * i);
      if constexpr (PackedLowBits(T) < 8) asm("" : "+v"(vectors[i]));
    }
  }
  __m512i vectors[kCount];
};

// Group i of four columns.
template <PackedType T, int i>
inline __m512i Group(const CodeVectors<T>& codes) {
  constexpr int kLow = PackedLowBits(T);
  constexpr int kHigh = PackedHighBits(T);
  __m512i w = codes.vectors[i % kLow];
  if constexpr (kLow == 8) return w;
  w = _mm512_and_si512(MoveBits<i - i % kLow, 0>(w), _mm512_set1_epi8(BitMask(kLow, 0)));
  if constexpr (kHigh > 0) {
    const __m512i high = MoveBits<i * kHigh % 8, kLow>(codes.vectors[kLow + i * kHigh / 8]);
    w = _mm512_ternarylogic_epi64(w, high, _mm512_set1_epi8(BitMask(kHigh, kLow)), 0xF8);  // w | (high & mask)
  }
  return w;
}

constexpr int32_t DotOffset(PackedType type) { return IsTablePacked(type) ? 128 : PackedOffset(type); }

inline __m512i BroadcastFour(const int8_t* codes) {
  int32_t four;
  __builtin_memcpy(&four, codes, 4);
  return _mm512_set1_epi32(four);
}

// Rows whose sums are made side by side: an instruction waits four cycles for the one before it in its sum, and two begin in each cycle.
constexpr int kRowsTogether = 4;

template <PackedType T, int MR, int kDots, bool kLow>
[[gnu::always_inline]] inline void BlockDots(const uint8_t* codes, const CodeLookup<T>& lookup, const ActivationBlock<MR>& x,
                                             F32x16* dots) {
  constexpr int kGroups = 8 / kDots;
  const CodeVectors<T> all(codes);
  const __m512i w[8] = {lookup(Group<T, 0>(all)), lookup(Group<T, 1>(all)), lookup(Group<T, 2>(all)), lookup(Group<T, 3>(all)),
                        lookup(Group<T, 4>(all)), lookup(Group<T, 5>(all)), lookup(Group<T, 6>(all)), lookup(Group<T, 7>(all))};
#pragma GCC unroll 8
  for (int first_row = 0; first_row < MR; first_row += kRowsTogether) {
    const int end_row = first_row + kRowsTogether < MR ? first_row + kRowsTogether : MR;
#pragma GCC unroll 2
    for (int dot = 0; dot < kDots; ++dot) {
      __m512i totals[MR];
      __m512i high[MR];
#pragma GCC unroll 8
      for (int m = first_row; m < end_row; ++m) {
        const int32_t* half_sums = x.HalfSums(m);
        totals[m] = _mm512_set1_epi32(-DotOffset(T) * (kDots == 2 ? half_sums[dot] : half_sums[0] + half_sums[1]));
        high[m] = _mm512_setzero_si512();
      }
#pragma GCC unroll 8
      for (int i = dot * kGroups; i < (dot + 1) * kGroups; ++i) {
#pragma GCC unroll 8
        for (int m = first_row; m < end_row; ++m) {
          __m512i& ones = kLow ? high[m] : totals[m];
          ones = _mm512_dpbusd_epi32(ones, w[i], BroadcastFour(x.Codes(m) + 4 * i));
          if constexpr (kLow) totals[m] = _mm512_dpbusd_epi32(totals[m], w[i], BroadcastFour(x.LowCodes(m) + 4 * i));
        }
      }
#pragma GCC unroll 8
      for (int m = first_row; m < end_row; ++m) {
        const __m512i total = kLow ? _mm512_add_epi32(totals[m], _mm512_slli_epi32(high[m], 8)) : totals[m];
        dots[m * kDots + dot] = {_mm512_cvtepi32_ps(total)};
      }
    }
  }
}

}  // namespace
}  // namespace llmi::avx512

// Integer dots of a packed block by VPMADDUBSW, which saturates at 16 bits. Codes of fewer than 8 bits are the unsigned operand:
// of up to 4 bits, eight pairs reach 8 x 2 x 15 x 127 = 30,480 and stay below 32,768; of 5 and 6 bits, a pair 2 x 63 x 127 = 16,002.
// 8-bit codes, and what a table has for codes, are signed weights w, and |w| x sign(a, w) keeps each pair at 2 x 128 x 127 = 32,512 or
// less. Exact in all cases.
#pragma once

namespace llmi::avx2 {
namespace {
constexpr char kTableBias = 0;
}  // namespace
}  // namespace llmi::avx2

#include "kernels/cpu/avx2/codes-inl.h"
#include "kernels/cpu/simd/activation_block-inl.h"

namespace llmi::avx2 {
namespace {

// Whether codes become signed bytes.
constexpr bool IsSigned(PackedType type) { return PackedLowBits(type) == 8 || IsTablePacked(type); }

// Pairs are added up in 16 bits before they are widened.
constexpr bool SumsPairs(PackedType type) { return !IsSigned(type) && PackedLowBits(type) + PackedHighBits(type) <= 4; }

constexpr bool HasLowSums(PackedType type) { return SumsPairs(type); }
constexpr int32_t DotOffset(PackedType type) { return IsSigned(type) ? 0 : PackedOffset(type); }

// Four columns of eight rows.
template <PackedType T>
struct FourColumns {
  FourColumns(const uint8_t* codes, const CodeLookup<T>& lookup, int i) : w(lookup(LoadGroup<T>(codes, i))) {
    if constexpr (PackedLowBits(T) == 8) w = _mm256_xor_si256(w, _mm256_set1_epi8(-128));
    if constexpr (IsSigned(T)) magnitude = _mm256_abs_epi8(w);
  }
  __m256i Pairs(__m256i four) const {
    return IsSigned(T) ? _mm256_maddubs_epi16(magnitude, _mm256_sign_epi8(four, w)) : _mm256_maddubs_epi16(w, four);
  }
  __m256i w;
  __m256i magnitude{};
};

// Adds adjacent pairs in 32 bits and multiplies by `worth`, the weight of the byte that the pairs are of.
inline __m256i Fours(__m256i pairs, int16_t worth) { return _mm256_madd_epi16(pairs, _mm256_set1_epi16(worth)); }

// Pair sums are multiplied by `worth` later, when they are widened.
template <PackedType T>
inline void AddProducts(const FourColumns<T>& w, __m256i four, int16_t worth, bool first, __m256i& sum) {
  const __m256i pairs = w.Pairs(four);
  if constexpr (SumsPairs(T)) {
    sum = first ? pairs : _mm256_add_epi16(sum, pairs);
  } else {
    const __m256i fours = Fours(pairs, worth);
    sum = first ? fours : _mm256_add_epi32(sum, fours);
  }
}

template <PackedType T, bool kLow>
inline __m256i WholeSum(const __m256i& sum, const __m256i& low) {
  if constexpr (!SumsPairs(T)) return sum;
  const __m256i high = Fours(sum, kLow ? 256 : 1);
  if constexpr (kLow) return _mm256_add_epi32(high, Fours(low, 1));
  return high;
}

}  // namespace
}  // namespace llmi::avx2

#include "kernels/cpu/avx2/tile_dots-inl.h"

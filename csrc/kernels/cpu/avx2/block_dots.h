// Integer dots of a packed block by VPMADDUBSW, which saturates at 16 bits. Codes of fewer than 8 bits are the unsigned operand:
// of 4 bits, eight pairs reach 8 x 2 x 15 x 127 = 30,480 and stay below 32,768; of 5 and 6 bits, a pair 2 x 63 x 127 = 16,002.
// 8-bit codes become signed weights w, and |w| x sign(a, w) keeps each pair at 2 x 128 x 127 = 32,512 or less. Exact in all cases.
// A broadcast of four activations serves all 16 rows of the tile; the sums of MR rows of x fill the registers.
#pragma once

#include "kernels/cpu/avx2/codes.h"
#include "kernels/cpu/simd/block_of_rows.h"

namespace llmi::avx2 {
namespace {

constexpr int kLinearRows = 6;
constexpr bool kReadsOneRowUnasked = false;

inline __m256i BroadcastFour(const int8_t* a) {
  int32_t four;
  __builtin_memcpy(&four, a, 4);
  return _mm256_set1_epi32(four);
}

// The compiler may not regroup sums across this: it would hold many products at once, and run out of registers.
inline void InOrder(__m256i& a, __m256i& b) { asm("" : "+x"(a), "+x"(b)); }

// Four columns of eight rows.
template <PackedType T>
struct FourColumns {
  FourColumns(const uint8_t* codes, int i) : w(LoadGroup<T>(codes, i)) {
    if constexpr (T == PackedType::kQ8) {
      w = _mm256_xor_si256(w, _mm256_set1_epi8(-128));
      magnitude = _mm256_abs_epi8(w);
    }
  }
  __m256i Pairs(__m256i four) const {
    return T == PackedType::kQ8 ? _mm256_maddubs_epi16(magnitude, _mm256_sign_epi8(four, w)) : _mm256_maddubs_epi16(w, four);
  }
  __m256i w;
  __m256i magnitude{};
};

template <PackedType T>
constexpr bool kPairSums = T != PackedType::kQ8 && PackedHighBits(T) == 0;

// Sums of group `i` of four columns, added to those of the groups before: pairs in 16 bits (4-bit codes) or fours in 32 bits.
template <PackedType T, int MR>
inline void AddGroup(const uint8_t* codes, int i, const BlockOfRows<MR>& x, bool first, __m256i* lo, __m256i* hi) {
  const FourColumns<T> w_lo(codes, i);
  const FourColumns<T> w_hi(codes + 32, i);
  for (int m = 0; m < MR; ++m) {
    const __m256i four = BroadcastFour(x.Codes(m) + 4 * i);
    const __m256i pairs_lo = w_lo.Pairs(four);
    const __m256i pairs_hi = w_hi.Pairs(four);
    if constexpr (kPairSums<T>) {
      lo[m] = first ? pairs_lo : _mm256_add_epi16(lo[m], pairs_lo);
      hi[m] = first ? pairs_hi : _mm256_add_epi16(hi[m], pairs_hi);
    } else {
      const __m256i ones = _mm256_set1_epi16(1);
      const __m256i fours_lo = _mm256_madd_epi16(pairs_lo, ones);
      const __m256i fours_hi = _mm256_madd_epi16(pairs_hi, ones);
      lo[m] = first ? fours_lo : _mm256_add_epi32(lo[m], fours_lo);
      hi[m] = first ? fours_hi : _mm256_add_epi32(hi[m], fours_hi);
    }
  }
  for (int m = 0; m < MR; ++m) InOrder(lo[m], hi[m]);
}

template <PackedType T, int MR, int kDots>
inline void BlockDots(const uint8_t* codes, const BlockOfRows<MR>& x, F32x16* dots) {
  constexpr int32_t kOffset = T == PackedType::kQ8 ? 0 : PackedOffset(T);  // the 8-bit codes are made signed above
#pragma GCC unroll 2
  for (int dot = 0; dot < kDots; ++dot) {
    __m256i lo[MR];
    __m256i hi[MR];
    const int first = dot * (8 / kDots);
#pragma GCC unroll 8
    for (int i = first; i < first + 8 / kDots; ++i) {
      AddGroup<T, MR>(codes, i, x, i == first, lo, hi);
    }
    for (int m = 0; m < MR; ++m) {
      if constexpr (kPairSums<T>) {
        lo[m] = _mm256_madd_epi16(lo[m], _mm256_set1_epi16(1));
        hi[m] = _mm256_madd_epi16(hi[m], _mm256_set1_epi16(1));
      }
      if constexpr (kOffset != 0) {
        const int32_t* half_sums = x.HalfSums(m);
        const __m256i offset = _mm256_set1_epi32(kOffset * (kDots == 2 ? half_sums[dot] : half_sums[0] + half_sums[1]));
        lo[m] = _mm256_sub_epi32(lo[m], offset);
        hi[m] = _mm256_sub_epi32(hi[m], offset);
      }
      dots[m * kDots + dot] = {_mm256_cvtepi32_ps(lo[m]), _mm256_cvtepi32_ps(hi[m])};
    }
  }
}

}  // namespace
}  // namespace llmi::avx2

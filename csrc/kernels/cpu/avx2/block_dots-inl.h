// Integer dots of a packed block by VPMADDUBSW, which saturates at 16 bits. Codes of fewer than 8 bits are the unsigned operand:
// of up to 4 bits, eight pairs reach 8 x 2 x 15 x 127 = 30,480 and stay below 32,768; of 5 and 6 bits, a pair 2 x 63 x 127 = 16,002.
// 8-bit codes, and what a table has for codes, are signed weights w, and |w| x sign(a, w) keeps each pair at 2 x 128 x 127 = 32,512 or
// less. Exact in all cases. A broadcast of four activations serves all 16 rows of the tile; the sums of MR rows of x fill the registers.
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

constexpr int kLinearRows = 6;
constexpr bool kHardwarePrefetchesOneRow = false;

inline __m256i BroadcastFour(const int8_t* a) {
  int32_t four;
  __builtin_memcpy(&four, a, 4);
  return _mm256_set1_epi32(four);
}

// Keeps the compiler from regrouping sums across this point: it would hold many products at once and run out of registers.
inline void InOrder(__m256i& a, __m256i& b) { asm("" : "+x"(a), "+x"(b)); }

// Whether codes become signed bytes.
constexpr bool IsSigned(PackedType type) { return PackedLowBits(type) == 8 || IsTablePacked(type); }

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

// Pairs are added up in 16 bits before they are widened.
constexpr bool SumsPairs(PackedType type) { return !IsSigned(type) && PackedLowBits(type) + PackedHighBits(type) <= 4; }

// Low bytes need separate pair sums, and so a pass has registers for half as many rows.
constexpr int LinearRows(PackedType type, ActivationForm form) {
  return form == ActivationForm::kTwoBytes && SumsPairs(type) ? kLinearRows / 2 : kLinearRows;
}

// Sums of rows 0 to 7 and 8 to 15 of the tile for MR rows of x: of pairs in 16 bits, or of fours in 32 bits.
template <int MR>
struct TileSums {
  __m256i lo[MR];
  __m256i hi[MR];
};

// Adds adjacent pairs in 32 bits and multiplies by `worth`, the weight of the byte that the pairs are of.
inline __m256i Fours(__m256i pairs, int16_t worth) { return _mm256_madd_epi16(pairs, _mm256_set1_epi16(worth)); }

// One step of a code's first byte, in steps of its last byte.
template <bool kLow>
constexpr int16_t kWorth = kLow ? 256 : 1;

// Adds the products of four columns with one byte of their activations to the sums of eight rows; `first`: there are none so far. Pair
// sums are multiplied by `worth` later, when they are widened.
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

// Adds group `i` of four columns to the sums of the earlier groups. `low`: sums of low bytes, used only if SumsPairs(T).
template <PackedType T, int MR, bool kLow>
inline void AddGroup(const uint8_t* codes, const CodeLookup<T>& lookup, int i, const ActivationBlock<MR>& x, bool first, TileSums<MR>& sums,
                     TileSums<MR>& low) {
  const FourColumns<T> w_lo(codes, lookup, i);
  const FourColumns<T> w_hi(codes + 32, lookup, i);
  for (int m = 0; m < MR; ++m) {
    const __m256i four = BroadcastFour(x.Codes(m) + 4 * i);
    AddProducts(w_lo, four, kWorth<kLow>, first, sums.lo[m]);
    AddProducts(w_hi, four, kWorth<kLow>, first, sums.hi[m]);
    if constexpr (kLow) {
      const __m256i low_four = BroadcastFour(x.LowCodes(m) + 4 * i);
      TileSums<MR>& low_sums = SumsPairs(T) ? low : sums;
      AddProducts(w_lo, low_four, 1, first && SumsPairs(T), low_sums.lo[m]);
      AddProducts(w_hi, low_four, 1, first && SumsPairs(T), low_sums.hi[m]);
    }
  }
  for (int m = 0; m < MR; ++m) {
    InOrder(sums.lo[m], sums.hi[m]);
    if constexpr (kLow && SumsPairs(T)) InOrder(low.lo[m], low.hi[m]);
  }
}

template <PackedType T, int MR, int kDots, bool kLow>
inline void BlockDots(const uint8_t* codes, const CodeLookup<T>& lookup, const ActivationBlock<MR>& x, F32x16* dots) {
  constexpr int32_t kOffset = IsSigned(T) ? 0 : PackedOffset(T);
#pragma GCC unroll 2
  for (int dot = 0; dot < kDots; ++dot) {
    TileSums<MR> sums;
    TileSums<MR> low;
    const int first = dot * (8 / kDots);
#pragma GCC unroll 8
    for (int i = first; i < first + 8 / kDots; ++i) {
      AddGroup<T, MR, kLow>(codes, lookup, i, x, i == first, sums, low);
    }
    for (int m = 0; m < MR; ++m) {
      __m256i lo = sums.lo[m];
      __m256i hi = sums.hi[m];
      if constexpr (SumsPairs(T)) {
        lo = Fours(lo, kWorth<kLow>);
        hi = Fours(hi, kWorth<kLow>);
        if constexpr (kLow) {
          lo = _mm256_add_epi32(lo, Fours(low.lo[m], 1));
          hi = _mm256_add_epi32(hi, Fours(low.hi[m], 1));
        }
      }
      if constexpr (kOffset != 0) {
        const int32_t* half_sums = x.HalfSums(m);
        const __m256i offset = _mm256_set1_epi32(kOffset * (kDots == 2 ? half_sums[dot] : half_sums[0] + half_sums[1]));
        lo = _mm256_sub_epi32(lo, offset);
        hi = _mm256_sub_epi32(hi, offset);
      }
      dots[m * kDots + dot] = {_mm256_cvtepi32_ps(lo), _mm256_cvtepi32_ps(hi)};
    }
  }
}

}  // namespace
}  // namespace llmi::avx2

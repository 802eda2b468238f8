// Integer dots of a packed block in registers of 32 bytes, each for eight rows of the tile. A broadcast of four activations serves all 16
// rows, and the sums of MR rows of x fill the registers, so that many are in flight. The instruction set supplies
//   HasLowSums(type)     whether low bytes have sums of their own, which takes twice the registers
//   DotOffset(type)      what a code as it is multiplied exceeds its level by
//   FourColumns<T>(codes, lookup, i)                 group i of eight rows
//   AddProducts<T>(w, four, worth, first, sum)       adds the products with four activations, each worth `worth`; `first`: to nothing
//   WholeSum<T, kLow>(sum, low)                      the 32-bit sums, of high and low bytes if kLow
#pragma once

namespace llmi::LLMI_ISA_NAMESPACE {
namespace {

constexpr int kLinearRows = 6;
constexpr int LinearRows(PackedType type, ActivationForm form) {
  return form == ActivationForm::kTwoBytes && HasLowSums(type) ? kLinearRows / 2 : kLinearRows;
}
constexpr bool kHardwarePrefetchesOneRow = false;

inline __m256i BroadcastFour(const int8_t* a) {
  int32_t four;
  __builtin_memcpy(&four, a, 4);
  return _mm256_set1_epi32(four);
}

// Keeps the compiler from regrouping sums across this point: it would hold many products at once and run out of registers.
inline void InOrder(__m256i& a, __m256i& b) { asm("" : "+x"(a), "+x"(b)); }

// Sums of rows 0 to 7 and 8 to 15 of the tile for MR rows of x.
template <int MR>
struct TileSums {
  __m256i lo[MR];
  __m256i hi[MR];
};

// One step of a code's first byte, in steps of its last byte.
template <bool kLow>
constexpr int16_t kWorth = kLow ? 256 : 1;

// Adds group `i` of four columns to the sums of the earlier groups. `low`: sums of low bytes, used only if HasLowSums(T).
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
      TileSums<MR>& low_sums = HasLowSums(T) ? low : sums;
      AddProducts(w_lo, low_four, 1, first && HasLowSums(T), low_sums.lo[m]);
      AddProducts(w_hi, low_four, 1, first && HasLowSums(T), low_sums.hi[m]);
    }
  }
  for (int m = 0; m < MR; ++m) {
    InOrder(sums.lo[m], sums.hi[m]);
    if constexpr (kLow && HasLowSums(T)) InOrder(low.lo[m], low.hi[m]);
  }
}

// Always inlined: two types of the same codes would share a function, and the sums would pass through memory.
template <PackedType T, int MR, int kDots, bool kLow>
[[gnu::always_inline]] inline void BlockDots(const uint8_t* codes, const CodeLookup<T>& lookup, const ActivationBlock<MR>& x,
                                             F32x16* dots) {
  constexpr int32_t kOffset = DotOffset(T);
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
      __m256i lo = WholeSum<T, kLow>(sums.lo[m], low.lo[m]);
      __m256i hi = WholeSum<T, kLow>(sums.hi[m], low.hi[m]);
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
}  // namespace llmi::LLMI_ISA_NAMESPACE

// Integer dots of a packed block by VPDPBUSD: codes are the unsigned operand, activations the signed one. Exact. What a table has for a
// code is made unsigned by adding 128, its offset.
#pragma once

namespace llmi::avx_vnni {
namespace {
constexpr char kTableBias = -128;  // modulo 256: 128
}  // namespace
}  // namespace llmi::avx_vnni

#include "kernels/cpu/avx2/codes-inl.h"
#include "kernels/cpu/simd/activation_block-inl.h"

namespace llmi::avx_vnni {
namespace {

constexpr bool HasLowSums(PackedType /*type*/) { return true; }
constexpr int32_t DotOffset(PackedType type) { return IsTablePacked(type) ? 128 : PackedOffset(type); }

// Four columns of eight rows.
template <PackedType T>
struct FourColumns {
  FourColumns(const uint8_t* codes, const CodeLookup<T>& lookup, int i) : w(lookup(LoadGroup<T>(codes, i))) {}
  __m256i w;
};

// The sums of high bytes are multiplied by their worth later.
template <PackedType T>
inline void AddProducts(const FourColumns<T>& w, __m256i four, int16_t /*worth*/, bool first, __m256i& sum) {
  const __m256i start = first ? _mm256_setzero_si256() : sum;
  // A test builds this file for AVX-512's form of the instruction, which more machines can run.
#ifdef __AVXVNNI__
  sum = _mm256_dpbusd_avx_epi32(start, w.w, four);
#else
  sum = _mm256_dpbusd_epi32(start, w.w, four);
#endif
}

template <PackedType T, bool kLow>
inline __m256i WholeSum(const __m256i& sum, const __m256i& low) {
  if constexpr (kLow) return _mm256_add_epi32(_mm256_slli_epi32(sum, 8), low);
  return sum;
}

}  // namespace
}  // namespace llmi::avx_vnni

#include "kernels/cpu/avx2/tile_dots-inl.h"

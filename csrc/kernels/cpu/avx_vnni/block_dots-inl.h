// Unpacks a block's codes into registers of 32 bytes for VnniDots (simd/vnni_dots-inl.h).
#pragma once

namespace llmi::avx_vnni {
namespace {
constexpr char kTableBias = -128;  // modulo 256: 128
}  // namespace
}  // namespace llmi::avx_vnni

#include "kernels/cpu/avx2/codes-inl.h"
#include "kernels/cpu/simd/vnni_dots-inl.h"

namespace llmi::avx_vnni {
namespace {

constexpr int kLinearRows = 4;
constexpr int LinearRows(PackedType /*type*/, ActivationForm /*form*/) { return kLinearRows; }
constexpr bool kHardwarePrefetchesOneRow = false;

struct Vnni {
  static __m256i Broadcast(int32_t x) { return _mm256_set1_epi32(x); }
  static __m256i Add256(__m256i low, __m256i high) { return _mm256_add_epi32(low, _mm256_slli_epi32(high, 8)); }
  // A test builds this file for AVX-512's form of the instruction, which more machines can run.
  static __m256i Dot(__m256i total, __m256i w, __m256i a) {
#ifdef __AVXVNNI__
    return _mm256_dpbusd_avx_epi32(total, w, a);
#else
    return _mm256_dpbusd_epi32(total, w, a);
#endif
  }
};

template <PackedType T, int MR, int kDots, bool kLow>
void BlockDots(const uint8_t* codes, const CodeLookup<T>& lookup, const ActivationBlock<MR>& x, F32x16* dots) {
  for (int half = 0; half < 2; ++half) {  // rows 0 to 7, then 8 to 15 of the tile
    __m256i w[8];
    for (int i = 0; i < 8; ++i) w[i] = lookup(LoadGroup<T>(codes + 32 * half, i));
    VnniDots<Vnni, T, MR, kDots, kLow>(
        w, x, [&](int index, __m256i total) { (half == 0 ? dots[index].lo : dots[index].hi) = _mm256_cvtepi32_ps(total); });
  }
}

}  // namespace
}  // namespace llmi::avx_vnni

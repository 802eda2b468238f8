// Eight rows of a packed block's codes (kernels/packed_weights.h) in registers of 32 bytes.
#pragma once

namespace llmi::LLMI_ISA_NAMESPACE {
namespace {

// Group i of four columns.
inline __m256i LoadCodes(const uint8_t* codes, int i) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes + 64 * i)); }

// All eight groups of 4-bit codes.
inline void LoadNibbles(const uint8_t* codes, __m256i* w) {
  const __m256i mask = _mm256_set1_epi8(15);
  for (int i = 0; i < 4; ++i) {
    const __m256i both = LoadCodes(codes, i);
    w[i] = _mm256_and_si256(both, mask);
    w[i + 4] = _mm256_and_si256(_mm256_srli_epi16(both, 4), mask);
  }
}

}  // namespace
}  // namespace llmi::LLMI_ISA_NAMESPACE

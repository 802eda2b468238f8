// Eight rows of a packed block's codes (kernels/packed_weights.h) in registers of 32 bytes.
#pragma once

namespace llmi::LLMI_ISA_NAMESPACE {
namespace {

// Group i of four columns.
inline __m256i LoadCodes(const uint8_t* codes, int i) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes + 64 * i)); }

// The same of 4-bit codes.
inline __m256i LoadNibbles(const uint8_t* codes, int i) {
  const __m256i both = LoadCodes(codes, i % 4);
  return _mm256_and_si256(i < 4 ? both : _mm256_srli_epi16(both, 4), _mm256_set1_epi8(15));
}

}  // namespace
}  // namespace llmi::LLMI_ISA_NAMESPACE

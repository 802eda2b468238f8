// Eight rows of a packed block's codes (kernels/layout/packed_weights.h) in registers of 32 bytes.
#pragma once

namespace llmi::LLMI_ISA_NAMESPACE {
namespace {

inline __m256i LoadVector(const uint8_t* codes, int i) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes + 64 * i)); }

// Group i of four columns.
template <PackedType T>
inline __m256i LoadGroup(const uint8_t* codes, int i) {
  constexpr int kHighBits = PackedHighBits(T);
  if constexpr (T == PackedType::kQ8) return LoadVector(codes, i);
  const __m256i both = LoadVector(codes, i % 4);
  const __m256i low = _mm256_and_si256(i < 4 ? both : _mm256_srli_epi16(both, 4), _mm256_set1_epi8(15));
  if constexpr (kHighBits == 0) return low;
  const __m256i high = LoadVector(codes, 4 + i * kHighBits / 8);
  const int bit = i * kHighBits % 8;
  const __m256i moved = bit < 4 ? _mm256_slli_epi16(high, 4 - bit) : _mm256_srli_epi16(high, bit - 4);
  return _mm256_or_si256(low, _mm256_and_si256(moved, _mm256_set1_epi8(((1 << kHighBits) - 1) << 4)));
}

}  // namespace
}  // namespace llmi::LLMI_ISA_NAMESPACE

// Eight rows of a packed block's codes (kernels/layout/packed_weights.h) in registers of 32 bytes.
#pragma once

namespace llmi::LLMI_ISA_NAMESPACE {
namespace {

inline __m256i LoadVector(const uint8_t* codes, int i) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes + 64 * i)); }

// What a table has for codes, plus kTableBias of the instruction set.
template <PackedType T>
struct CodeLookup {
  explicit CodeLookup(const CodeTable& codes) {
    const __m128i both = _mm_set_epi64x(static_cast<int64_t>(codes.high), static_cast<int64_t>(codes.low));
    table = _mm256_broadcastsi128_si256(_mm_add_epi8(both, _mm_set1_epi8(kTableBias)));
  }
  __m256i operator()(__m256i codes) const {
    if constexpr (IsTablePacked(T)) return _mm256_shuffle_epi8(table, codes);
    return codes;
  }
  __m256i table;
};

// Bits [from, from + count) of a byte.
constexpr char BitMask(int count, int from) { return static_cast<char>(((1 << count) - 1) << from); }

// Group i of four columns.
template <PackedType T>
inline __m256i LoadGroup(const uint8_t* codes, int i) {
  constexpr int kLow = PackedLowBits(T);
  constexpr int kHigh = PackedHighBits(T);
  const __m256i both = LoadVector(codes, i % kLow);
  if constexpr (kLow == 8) return both;
  const __m256i low = _mm256_and_si256(i < kLow ? both : _mm256_srli_epi16(both, i - i % kLow), _mm256_set1_epi8(BitMask(kLow, 0)));
  if constexpr (kHigh == 0) return low;
  const __m256i high = LoadVector(codes, kLow + i * kHigh / 8);
  const int bit = i * kHigh % 8;
  const __m256i moved = bit < kLow ? _mm256_slli_epi16(high, kLow - bit) : _mm256_srli_epi16(high, bit - kLow);
  return _mm256_or_si256(low, _mm256_and_si256(moved, _mm256_set1_epi8(BitMask(kHigh, kLow))));
}

}  // namespace
}  // namespace llmi::LLMI_ISA_NAMESPACE

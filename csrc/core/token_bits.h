// A set of token ids as bits: id is bit id % 32 of word id / 32. There are NumTokenWords(vocab_size) words, and bits past the vocabulary
// are 0.
#pragma once

#include <bit>
#include <cstdint>
#include <span>
#include <vector>

namespace llmi {

using TokenBits = std::span<const uint32_t>;

constexpr int64_t NumTokenWords(int64_t vocab_size) { return (vocab_size + 31) / 32; }

// token_ids: each in [0, vocab_size).
inline std::vector<uint32_t> BitsOf(std::span<const int32_t> token_ids, int64_t vocab_size) {
  std::vector<uint32_t> words(static_cast<size_t>(NumTokenWords(vocab_size)));
  for (const int32_t id : token_ids) words[static_cast<size_t>(id / 32)] |= 1u << (id % 32);
  return words;
}

// Calls visit(id) for each id of the set, ascending.
template <typename Visit>
void ForEachToken(TokenBits bits, const Visit& visit) {
  for (size_t word = 0; word < bits.size(); ++word) {
    for (uint32_t left = bits[word]; left != 0; left &= left - 1) {
      visit(static_cast<int32_t>(word * 32 + static_cast<size_t>(std::countr_zero(left))));
    }
  }
}

}  // namespace llmi

// A table from the last tokens of a text to the token that followed them most often in other texts.
//
// It backs off: the context of `max_order` tokens is looked up first, then each shorter one (Katz, 1987, without his discounts, since only
// the likeliest token is wanted). A context is an entry of an open hash table: 16 bits that check the hash, the token, and the rate at
// which the token is expected to follow. A wrong match of 16 bits costs speed alone. An entry is left out where the shorter context says
// the same.
//
// Where a context is stored depends on HashContext and Home, which files rely on: a change of either is a new version of the format.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace llmi {

constexpr int64_t kMaxCorpusOrder = 8;

class CorpusTable {
 public:
  // One element a slot. checks: 0 = empty. tokens: low 16 bits of the ids. high_tokens: the other bits; empty if no id needs them.
  // rates: the expected rate in steps of 1/255.
  struct Slots {
    std::vector<uint16_t> checks;
    std::vector<uint16_t> tokens;
    std::vector<uint8_t> high_tokens;
    std::vector<uint8_t> rates;
  };
  struct Guess {
    int32_t token = -1;  // -1: no context of the text is known
    float rate = 0;      // in [0, 1]
    int64_t order = 0;   // tokens of the context that was found
  };

  // Throws Error(kInvalidArgument) for slots of different numbers, or tokens outside the vocabulary.
  CorpusTable(int64_t vocab_size, int64_t max_order, Slots slots);
  // Counts texts. token_ids: all texts, one after the other. ends: where each text ends. max_bytes: of the slots; entries that would have
  // predicted most of the texts are kept. Throws Error(kInvalidArgument) for tokens outside the vocabulary, or too many tokens.
  static CorpusTable Count(std::span<const int32_t> token_ids, std::span<const int64_t> ends, int64_t vocab_size, int64_t max_order,
                           int64_t max_bytes);

  // The token that is expected after `text`.
  Guess Next(std::span<const int32_t> text) const;

  int64_t vocab_size() const { return vocab_size_; }
  int64_t max_order() const { return max_order_; }
  const Slots& slots() const { return slots_; }
  int64_t num_entries() const { return num_entries_; }
  int64_t num_bytes() const;

 private:
  int32_t TokenAt(size_t slot) const;

  int64_t vocab_size_;
  int64_t max_order_;
  Slots slots_;
  int64_t num_entries_ = 0;
};

}  // namespace llmi

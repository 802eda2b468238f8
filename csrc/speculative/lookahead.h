// Lookahead decoding: rows next to the sequence guess tokens ahead of it by Jacobi iteration; the n-grams that they make are kept, and
// those that begin with the last token are drafted (Fu et al., "Break the Sequential Dependency of LLM Inference Using Lookahead Decoding",
// 2024).
//
// Both branches are one tree. The window's first row of guesses is a chain after the last token, and from each of its tokens hangs the
// chain of the later rows. Guesses are nodes like any others: one that turns out right is accepted. All state belongs to one sequence and
// begins with its own last tokens.
#pragma once

#include <cstdint>
#include <memory>

#include "speculative/drafter.h"

namespace llmi {

class Lookahead : public Drafter {
 public:
  // window: columns of guesses. ngram_size: tokens of the n-grams that are kept; one row of guesses less is computed. max_ngrams: n-grams
  // that are drafted at once.
  Lookahead(int64_t window, int64_t ngram_size, int64_t max_ngrams)
      : Drafter({.name = "lookahead", .num_likeliest = 1}), window_(window), ngram_size_(ngram_size), max_ngrams_(max_ngrams) {}
  std::unique_ptr<DrafterState> NewState(const SequenceKey& sequence, HeadSource& heads) override;
  void Learn(DrafterState& state, const SeenRow& row, bool shares) override;
  void Propose(std::span<Seat> seats) override;

 private:
  const int64_t window_;
  const int64_t ngram_size_;
  const int64_t max_ngrams_;
};

}  // namespace llmi

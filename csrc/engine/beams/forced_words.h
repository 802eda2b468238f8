// Progress of a beam through the words that its search must produce, by the rule of transformers 4.52.4 (ConstraintListState): one word at
// a time, in any order, over the tokens of the prompt and the output; a token that breaks a word begins that word anew, and no other. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/beams/candidates.h"

namespace llmi {

// Each entry: alternatives, lists of tokens, none of which begins another.
using ForcedWords = std::vector<std::vector<std::vector<int32_t>>>;

class ForcedProgress {
 public:
  ForcedProgress() = default;
  // words must outlive it. tokens: of the prompt.
  ForcedProgress(const ForcedWords& words, std::span<const int32_t> tokens);

  void Add(int32_t token);
  bool completed() const { return pending_.empty() && current_ < 0; }
  // How far it is: the longest word's length for each complete word, and the tokens of the word under way, counted from its end.
  int64_t bank() const;
  // The tokens that make progress; none if all words are complete.
  std::vector<int32_t> NextTokens() const;

 private:
  int64_t LengthOf(size_t entry) const;
  std::vector<int32_t> Following(size_t entry, std::span<const int32_t> begun) const;

  const ForcedWords* words_ = nullptr;
  std::vector<size_t> pending_;  // entries in the order in which they are tried
  int64_t current_ = -1;         // the entry under way, or -1
  std::vector<int32_t> begun_;   // its tokens so far
  int64_t num_complete_ = 0;
};

// The order of at most `count` beams: sorted by 100 bank + score, then the first of each run of equal banks, the second of each, and so on.
std::vector<size_t> OrderByBanks(std::span<const int64_t> banks, std::span<const BeamCandidate> candidates, int64_t count);

}  // namespace llmi

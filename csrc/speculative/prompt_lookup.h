// Prompt lookup: finds an earlier occurrence of the last tokens in the prompt or the output, and proposes the tokens that followed it.
//
// The longest n-gram is searched first; of several occurrences the latest is used (Saxena, "Prompt lookup decoding", 2023). For each n a
// map leads from an n-gram's hash to the position after its latest occurrence. So adding a token and searching cost O(max_ngram), whatever
// the length of the text. A match is compared token by token before it is used.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "speculative/drafter.h"

namespace llmi {

class NgramIndex : public DrafterState {
 public:
  NgramIndex(int64_t min_ngram, int64_t max_ngram);

  // Adds the tokens after those that it has already. All n-grams but those that end at the last token can then be found.
  void Update(std::span<const int32_t> token_ids);
  // The position after the latest earlier occurrence of the longest n-gram (max_ngram tokens at most) that ends the text; -1 if none.
  int64_t Find(std::span<const int32_t> token_ids) const;

 private:
  int64_t min_ngram_;
  int64_t num_seen_ = 0;
  std::vector<std::unordered_map<uint64_t, int64_t>> ends_;  // [n - min_ngram]
};

class PromptLookup : public Drafter {
 public:
  PromptLookup(int64_t min_ngram, int64_t max_ngram)
      : Drafter({.name = "prompt_lookup", .tells_kinds = true}), min_ngram_(min_ngram), max_ngram_(max_ngram) {}
  NgramIndex NewIndex() const { return {min_ngram_, max_ngram_}; }
  std::unique_ptr<DrafterState> NewState(const SequenceKey& sequence, HeadSource& heads) override;
  // The kind of a node is by the tokens that match: the more they are, the more likely is the next one to match.
  double expected_rate(int32_t kind, bool greedy) const override;
  void Propose(std::span<Seat> seats) override;

 private:
  int64_t min_ngram_;
  int64_t max_ngram_;
};

}  // namespace llmi

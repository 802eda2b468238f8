// Prompt lookup: what followed when the last tokens stood earlier in the prompt or the output.
//
// The longest n-gram first, the latest of several (Saxena, "Prompt lookup decoding", 2023). Each n keeps a map from
// the hash of an n-gram to the position after its latest occurrence, so a token costs O(max_ngram) to add and to
// look up, whatever the length of the text; a match is compared token by token before it is used.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "speculative/drafter.h"

namespace llmi {

class NgramIndex : public DrafterState {
 public:
  NgramIndex(int64_t min_ngram, int64_t max_ngram);

  // Takes in tokens past those it has seen; all but the last become findable.
  void Update(std::span<const int32_t> token_ids);
  // The position that followed the longest, then latest, earlier occurrence of the last tokens; -1 if none. Longest: of
  // up to max_ngram tokens.
  int64_t Find(std::span<const int32_t> token_ids) const;

 private:
  int64_t min_ngram_;
  int64_t num_seen_ = 0;
  std::vector<std::unordered_map<uint64_t, int64_t>> ends_;  // [n - min_ngram]
};

class PromptLookup : public Drafter {
 public:
  PromptLookup(int64_t min_ngram, int64_t max_ngram) : min_ngram_(min_ngram), max_ngram_(max_ngram) {}
  std::string name() const override { return "prompt_lookup"; }
  std::unique_ptr<DrafterState> NewState(uint64_t request_id, int64_t sample_index) override;
  // The more tokens match, the likelier that the next one does.
  double expected_acceptance(int32_t confidence) const override;
  bool tells_confidence() const override { return true; }
  void Propose(std::span<DraftContext*> contexts) override;

 private:
  int64_t min_ngram_;
  int64_t max_ngram_;
};

}  // namespace llmi

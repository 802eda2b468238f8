// The finished hypotheses of a beam search: their scores, which of them are kept, and when the search ends. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/beams/params.h"

namespace llmi {

// length^penalty, with the same bits on every machine.
double LengthDivisor(int64_t length, double penalty);

struct BeamScoring {
  BeamParams params;
  int64_t prompt_len = 0;
  int64_t max_tokens = 0;

  // The score of a hypothesis of num_tokens output tokens. ends_in_eos: the last of them is a stop token.
  double Score(double sum, int64_t num_tokens, bool ends_in_eos) const;
};

struct FinishedBeam {
  double score = 0;
  double sum = 0;
  int64_t step = 0;  // output tokens
  int64_t rank = 0;  // among the step's candidates
  int32_t node = -1;
  size_t end = 0;  // how it ended: an index of the group's list
};

// By score, then the earlier step, then rank.
bool IsBetter(const FinishedBeam& a, const FinishedBeam& b);

// Keeps the best `capacity` hypotheses.
class FinishedBeams {
 public:
  explicit FinishedBeams(int64_t capacity) : capacity_(capacity) {}

  void Add(const FinishedBeam& beam);
  bool full() const { return static_cast<int64_t>(beams_.size()) == capacity_; }
  const std::vector<FinishedBeam>& beams() const { return beams_; }  // best first
  // Whether no running beam is expected to improve. best_sum: of the running beams; num_tokens: that they have now.
  bool Ends(const BeamScoring& scoring, double best_sum, int64_t num_tokens) const;

 private:
  int64_t capacity_;
  std::vector<FinishedBeam> beams_;
};

}  // namespace llmi

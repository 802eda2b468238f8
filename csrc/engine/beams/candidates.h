// The continuations that a beam search chooses from: for each running beam the best tokens of its row, then the best of all beams.
//
// A candidate's score is its beam's sum plus the token's log-probability, the latter in fp32, the sum in fp64. Candidates rank by score,
// then by the rank of their beam, then by the token's logit, descending, then by token id: two logits can round to one log-probability.
// Pure functions of rows.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "kernels/ops/context.h"
#include "sampling/law.h"
#include "sampling/state.h"

namespace llmi {

struct BeamCandidate {
  double score = 0;
  double key = 0;      // beam-sample: score + Gumbel noise, by which candidates are drawn; else the score
  int64_t parent = 0;  // rank of its beam
  float logit = 0;     // of the model
  int32_t token = 0;
  SamplerState sampler = {};  // of the beam after the token
};

bool RanksBefore(const BeamCandidate& a, const BeamCandidate& b);

// A beam's row. The log-probability of token i is values[i] - total.
struct BeamRow {
  std::span<const float> values;  // [vocab_size]: finite or -inf; -inf is no candidate
  std::span<const float> logits;  // [vocab_size]: of the model
  float total = 0;
  double sum = 0;    // of the beam
  int64_t rank = 0;  // of the beam
};

// The `count` best candidates of a row, or fewer if the row has fewer, best first.
std::vector<BeamCandidate> BestOfRow(const BeamRow& row, int64_t count);

// The `count` candidates with the largest keys, the largest first: a draw without replacement, in proportion to exp(score), from this row
// and, if rows are merged by key, from all of them (Gumbel top-k).
std::vector<BeamCandidate> DrawnOfRow(const KernelContext& context, const BeamRow& row, const NoiseKey& noise, int64_t count);

// The `count` best candidates of several rows, best first. drawn: those with the largest keys, which are then ranked by score, too.
std::vector<BeamCandidate> BestOfAll(std::vector<BeamCandidate> candidates, int64_t count, bool drawn);

}  // namespace llmi

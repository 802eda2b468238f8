// Chooses the nodes of a draft that pay: those with the most expected tokens per second, which may be none.
//
// Nodes are taken by the probability that their whole path is accepted, and as many as the cost curve makes worth it (as Sequoia, Chen et
// al., 2024, and CAST, 2026, size trees by the hardware).
#pragma once

#include <cstdint>
#include <vector>

#include "speculative/cost_curve.h"
#include "speculative/node_rates.h"

namespace llmi {

// The step so far, and the cost of one more draft in it.
struct LengthQuestion {
  double expected_tokens = 0;          // expected tokens of the step without this draft
  int64_t num_rows = 0;                // rows of the step without this draft
  double draft_seconds_per_token = 0;  // time to draft one token
  int64_t max_length = 0;
  double drafted_ratio = 1;      // measured time over the curve's for steps with drafts, divided by the same ratio for steps without
  double start_seconds = 0;      // one-time cost to begin drafting for this sequence: a draft model reads its prompt
  int64_t remaining_tokens = 0;  // tokens that the sequence may still draw; used only if start_seconds > 0
};

struct NodeChoice {
  std::vector<int32_t> nodes;  // ascending
  double cost = 0;             // what they add to the step, in its time without them for each of its expected tokens
  double gain = 0;             // expected tokens
  double risk = 1;             // the probability that none is accepted
};

// None if the best choice is less than 1 % better than no draft, or if drafting saves less over the rest of the sequence than
// start_seconds.
NodeChoice ChooseNodes(const Draft& draft, const NodeRates& rates, const CostCurve& costs, const LengthQuestion& question);
// The choice of all nodes.
NodeChoice AllNodes(const Draft& draft, const NodeRates& rates, const CostCurve& costs, const LengthQuestion& question);

}  // namespace llmi

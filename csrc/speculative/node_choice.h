// Chooses the nodes of a draft that pay: those with the most expected tokens per second, which may be none.
//
// Nodes are taken by the probability that their whole path is accepted, and as many as the cost curve makes worth it (as Sequoia, Chen et
// al., 2024, and CAST, 2026, size trees by the hardware).
#pragma once

#include <cstdint>
#include <vector>

#include "speculative/length.h"
#include "speculative/node_rates.h"

namespace llmi {

struct NodeChoice {
  std::vector<int32_t> nodes;  // ascending
  double cost = 0;             // what they add to the step, in its time without them for each of its expected tokens
  double gain = 0;             // expected tokens
  double risk = 1;             // the probability that none is accepted
};

// question: of the step without this draft. max_length: nodes. draft_seconds_per_token and later fields: drafted_ratio alone is used.
NodeChoice ChooseNodes(const Draft& draft, const NodeRates& rates, const CostCurve& costs, const LengthQuestion& question);
// The choice of all nodes.
NodeChoice AllNodes(const Draft& draft, const NodeRates& rates, const CostCurve& costs, const LengthQuestion& question);

}  // namespace llmi

// What a row attends to, for those who look inside: the op itself never has these numbers in memory.
#pragma once

#include <stdint.h>

#include <vector>

#include "kernels/ops/attention.h"

namespace llmi {

// Softmax weights [num_heads, base_len + row + 1] of row `row` of a segment, over the slots up to its own; 0 for what it
// does not see. Scores as in attention.h; the softmax is taken in float64.
std::vector<float> AttentionWeights(const AttentionArgs& args, const AttentionSegment& segment, int64_t row);

}  // namespace llmi

// The attention weights of a row, for users who inspect them; paged_attention itself never stores them.
#pragma once

#include <stdint.h>

#include <vector>

#include "kernels/ops/attention.h"

namespace llmi {

// Softmax weights [num_heads, base_len + row + 1] of row `row` of a segment, over the slots up to its own; 0 for slots that it
// does not see. Scores as in attention.h; the softmax is taken in float64. With sinks a head's weights sum to less than 1.
// All pointers of args are the host's.
std::vector<float> AttentionWeights(const AttentionArgs& args, const AttentionSegment& segment, int64_t row);

}  // namespace llmi

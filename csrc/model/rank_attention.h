// The attention of a layer between its projections and the output projection, on one of several ranks: its own heads, then all of them.
#pragma once

#include <vector>

#include "kernels/ops/row_ops.h"
#include "model/attention_layer.h"

namespace llmi {

// heads: the rank's own. gate: of them, or x null; x is not read. Stores the gated rows of all heads in `attended` [num_rows, heads].
void AttendOnRank(const LayerPass& pass, int64_t layer, const LayerWeights& weights, const ProjectedHeads& heads, const LayerCache& cache,
                  GateArgs gate, float* attended, ForwardResult* result);
// The attention weights of wanted rows and all heads, on rank 0. args: of the rank's heads, with all heads' sinks and biases.
std::vector<std::vector<float>> WeightsOfAllHeads(const LayerPass& pass, const AttentionSpec& attention, const AttentionArgs& args,
                                                  const std::vector<int32_t>& wanted_rows);

}  // namespace llmi

// The attention weights of the wanted rows, computed on the host from queries and cache, wherever these are.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/ops/attention.h"
#include "kernels/ops/context.h"

namespace llmi {

// The attention weights of each wanted row of num_rows rows: [num_heads, slots up to it] (kernels/ops/attention_weights.h). Segments and
// wanted rows must be in row order. args: as PagedAttention had them.
std::vector<std::vector<float>> WantedWeights(const KernelContext& context, AttentionArgs args, int64_t num_rows,
                                              const std::vector<int32_t>& wanted_rows);

}  // namespace llmi

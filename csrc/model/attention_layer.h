// The attention of one layer: projections, norms of heads, rotation, cache, attention, gate and output projection.
#pragma once

#include <cstdint>

#include "cache/kv_cache.h"
#include "kernels/ops/attention.h"
#include "model/forward_batch.h"
#include "model/layer_pass.h"

namespace llmi {

// The cache of a layer and the batch that is placed in it.
struct LayerCache {
  KvView kv;
  const AttentionSegment* segments;
  int64_t num_segments;
  const ForwardBatch& batch;
};

// Adds the attention of layer `layer` to the residual stream. norm: of the layer's input, stored in `normed_at`, one of the pass's buffers.
// Stores the attention weights that the batch wants in *result.
void AttentionLayer(const LayerPass& pass, int64_t layer, const LayerWeights& weights, float* normed_at, const LayerCache& cache,
                    ForwardResult* result);

}  // namespace llmi

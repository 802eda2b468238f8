// The attention of one layer: projections, norms of heads, rotation, cache, attention, gate and output projection.
#pragma once

#include <cstdint>
#include <vector>

#include "cache/kv_cache.h"
#include "kernels/ops/attention_step.h"
#include "model/forward_batch.h"
#include "model/layer_pass.h"

namespace llmi {

// What each row of a batch sees where a model is two-sided: AttentionArgs::firsts and positions.
struct TwoSidedRows {
  std::vector<int32_t> firsts;
  std::vector<int32_t> lasts;
};
// window: positions that a row sees on each side, itself included; 0: all.
TwoSidedRows SeenRows(const ForwardBatch& batch, int64_t window);

// The cache of a layer and the batch that is placed in it.
struct LayerCache {
  KvView kv;
  const AttentionSegment* segments;
  int64_t num_segments;
  const ForwardBatch& batch;
  const TwoSidedRows* seen;   // null: rows see what is before them
  KeyBoundsView bounds = {};  // if rows of the batch pick what they see
};
// Sets which positions the batch's rows see.
void SeeRows(const LayerCache& cache, AttentionArgs* args);

// The heads of a layer that are computed of each row.
enum class HeadKinds : uint8_t { kAll, kQueries, kKeysAndValues };  // gates go with queries

// Rows beside those of the residual stream that a layer's projections read by matrices of their own; what they make of them is added.
struct SideInput {
  const float* rows;  // [num_rows, hidden]
  const LinearWeights& query;
  const LinearWeights& key;
  const LinearWeights& value;
};

// What projections have made of each row: heads side by side, and gates behind them.
struct ProjectedHeads {
  int64_t num_queries, num_keys;  // heads; 0: they are not computed
  float* queries;
  float* keys;
  float* values;
  float* gate;
  int64_t stride;
};

// The projections read the norm of the residual stream, which is stored in `normed_at`, one of the pass's buffers. side: null: they read
// nothing else. The result lies in the pass's workspace until the next call; queries and keys are neither normed nor rotated (StepsOf).
ProjectedHeads ProjectHeads(const LayerPass& pass, int64_t layer, const LayerWeights& weights, float* normed_at, HeadKinds kinds,
                            const SideInput* side = nullptr);
// Their norms, rotation and factors.
HeadSteps StepsOf(const LayerPass& pass, int64_t layer, const LayerWeights& weights, const ProjectedHeads& heads);
// The arguments of the layer's attention but for segments and positions, which differ for who runs it. out [num_rows, heads].
AttentionArgs AttentionOf(const LayerPass& pass, int64_t layer, const LayerWeights& weights, const ProjectedHeads& heads, const KvView& kv,
                          float* out);
// Where attention of the layer stores its rows [num_rows, AttentionSpec::query_size()], in the pass's workspace.
float* Attended(const LayerPass& pass, int64_t layer);
// Adds what the output projection makes of gated attended rows to the residual stream.
void AddAttention(const LayerPass& pass, int64_t layer, const LayerWeights& weights, const ProjectedHeads& heads, float* attended);

// Adds the attention of layer `layer` to the residual stream. normed_at: as for ProjectHeads. Stores the attention weights that the batch
// wants in *result.
void AttentionLayer(const LayerPass& pass, int64_t layer, const LayerWeights& weights, float* normed_at, const LayerCache& cache,
                    ForwardResult* result);

}  // namespace llmi

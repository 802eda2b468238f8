// Latent attention (DeepSeek-AI, DeepSeek-V2, 2024): all heads share one latent c of a token and one rotated key k_r, and only these are in
// the cache. A head's key is K c beside k_r and its value V c, with matrices K [key_size, rank] and V [value_size, rank] of its own.
//
// Always in the absorbed form, for prompts too: a query is (q_r, K^T q), its score the product with (k_r, c), and the head's output V times
// the weighted sum of c. Keys and values of heads are never made, so a row's bits do not depend on which rows are computed with it.
// Order of the sums: q and K^T q are linear layers (kernels/ops/linear.h; K^T of a quantised tensor that lies along the latent is used in
// fp32); a score's dimensions are those of k_r, then those of c; the weighted sum is attention's; then V, then the output projection, as
// linear layers.
#pragma once

#include "model/attention_layer.h"

namespace llmi {

// As AttentionLayer, for a layer with a latent.
void LatentAttentionLayer(const LayerPass& pass, int64_t layer, const LayerWeights& weights, float* normed_at, const LayerCache& cache,
                          ForwardResult* result);

}  // namespace llmi

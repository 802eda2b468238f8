// What the layers of a model keep in the KV cache.
#pragma once

#include <vector>

#include "cache/kv_groups.h"
#include "model/rank_plan.h"
#include "model/spec.h"

namespace llmi {

// plan: with the heads that the pages of this rank hold; null: there is one.
inline std::vector<KvLayer> KvLayersOf(const ModelSpec& spec, const RankPlan* plan = nullptr, int rank = 0) {
  std::vector<KvLayer> layers;
  for (const LayerSpec& layer : spec.layers) {
    const bool held = plan == nullptr || plan->Holds(static_cast<int64_t>(layers.size()));
    const AttentionSpec& attention = layer.attention;
    if (layer.has_attention()) {
      // A two-sided model sees a text in one step, which ends with it: no block is given back before.
      layers.push_back({spec.two_sided ? 0 : attention.window, attention.num_kv_heads, attention.padded_head_dim(), attention.kv_donor,
                        plan == nullptr ? -1
                        : held          ? plan->KvHeads(attention, rank).size()
                                        : 0});
    } else {
      layers.emplace_back().window = kNoKv;
    }
  }
  return layers;
}

}  // namespace llmi

// What the layers of a model keep in the KV cache.
#pragma once

#include <vector>

#include "cache/kv_groups.h"
#include "model/spec.h"

namespace llmi {

inline std::vector<KvLayer> KvLayersOf(const ModelSpec& spec) {
  std::vector<KvLayer> layers;
  for (const LayerSpec& layer : spec.layers) {
    const AttentionSpec& attention = layer.attention;
    if (layer.has_attention()) {
      layers.push_back({attention.window, attention.num_kv_heads, attention.padded_head_dim(), attention.kv_donor});
    } else {
      layers.emplace_back().window = kNoKv;
    }
  }
  return layers;
}

}  // namespace llmi

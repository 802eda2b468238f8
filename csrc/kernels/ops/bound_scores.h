// bound_scores: for each tile of keys the largest product that a query of one KV head could have with any of them (Tang et al., Quest,
// 2024), by the bounds of layout/key_bounds.h.
//
// Of a query: 16 lanes (dimension mod 16), each max(q lo, q hi) added in order, folded 8, 4, 2, 1. Of a KV head: the largest of its
// queries'.
#pragma once

#include <stdint.h>

namespace llmi {

struct BoundArgs {
  const float* q;  // [num_heads, head_dim]
  int64_t num_heads;
  int64_t head_dim;            // a multiple of 16
  const float* const* bounds;  // [num_tiles]
  int64_t num_tiles;
  float* scores;  // [num_tiles]
};

}  // namespace llmi

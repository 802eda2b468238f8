// Bounds of products over 16 lanes of dimensions. Definition: kernels/ops/bound_scores.h.
#pragma once

#include "kernels/ops/bound_scores.h"

namespace llmi::LLMI_ISA_NAMESPACE {

void bound_scores(const BoundArgs& args) {
  for (int64_t tile = 0; tile < args.num_tiles; ++tile) {
    const float* smallest = args.bounds[tile];
    const float* largest = smallest + args.head_dim;
    if (tile + 4 < args.num_tiles) {
      for (int64_t d = 0; d < 2 * args.head_dim; d += 16) __builtin_prefetch(args.bounds[tile + 4] + d, 0, 2);
    }
    for (int64_t head = 0; head < args.num_heads; ++head) {
      const float* q = args.q + head * args.head_dim;
      F32x16 lanes = Zero();
      for (int64_t d = 0; d < args.head_dim; d += 16) {
        const F32x16 query = Load(q + d);
        lanes = Add(lanes, Max(Mul(query, Load(smallest + d)), Mul(query, Load(largest + d))));
      }
      const float score = FoldSum(lanes);
      const float before = args.scores[tile];
      args.scores[tile] = head == 0 || score > before ? score : before;
    }
  }
}

}  // namespace llmi::LLMI_ISA_NAMESPACE

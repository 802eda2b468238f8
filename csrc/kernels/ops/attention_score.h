// A score's last steps (kernels/ops/attention.h), as the reference, the accelerators and AttentionWeights take them.
#pragma once

#include <stdint.h>

#include "core/scalar_math.h"
#include "kernels/ops/attention.h"

namespace llmi {

// product: of q and K.
LLMI_HD static inline float CappedScore(const AttentionArgs& args, float product) {
  const float score = product * args.scale;
  return args.soft_cap > 0.0f ? SoftCapF32(score, args.soft_cap) : score;
}

// slope: the linear bias of the query's head. position: of the key.
LLMI_HD static inline float BiasedScore(float slope, int64_t position, float score) { return score + slope * static_cast<float>(position); }

// head: of the query.
LLMI_HD static inline float FinishedScore(const AttentionArgs& args, int64_t head, int64_t position, float product) {
  const float score = CappedScore(args, product);
  return args.linear_biases != nullptr ? BiasedScore(args.linear_biases[head], position, score) : score;
}

}  // namespace llmi

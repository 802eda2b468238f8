// A score's last steps (kernels/ops/attention.h), as the reference, the accelerators and AttentionWeights take them.
#pragma once

#include <stdint.h>

#include "core/scalar_math.h"
#include "kernels/ops/attention.h"

namespace llmi {

// product: of q and K. head: of the query. position: of the key.
LLMI_HD static inline float FinishedScore(const AttentionArgs& args, int64_t head, int64_t position, float product) {
  float score = product * args.scale;
  if (args.soft_cap > 0.0f) score = SoftCapF32(score, args.soft_cap);
  if (args.linear_biases != nullptr) score = score + args.linear_biases[head] * static_cast<float>(position);
  return score;
}

}  // namespace llmi

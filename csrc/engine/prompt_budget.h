// How many prompt tokens may join a step of decodes.
#pragma once

#include <algorithm>
#include <cstdint>

#include "speculative/cost_curve.h"

namespace llmi {

// As many as keep the step within kStallFactor times the predicted time of its decodes alone, but at least kMinPromptBudget.
// decode_ratio, mixed_ratio: seconds of steps without and with prompts over those of the curve.
inline int64_t PromptBudgetOf(const CostCurve& curve, double decode_ratio, double mixed_ratio, int64_t num_decodes, int64_t max_num_rows) {
  constexpr double kStallFactor = 1.7;
  constexpr int64_t kMinPromptBudget = 8;
  const double limit = kStallFactor * decode_ratio * curve.Seconds(num_decodes);
  int64_t budget = kMinPromptBudget;
  for (int64_t end = std::max(budget, max_num_rows) + 1; end - budget > 1;) {  // more rows never take less
    const int64_t middle = budget + (end - budget) / 2;
    (mixed_ratio * curve.Seconds(num_decodes + middle) <= limit ? budget : end) = middle;
  }
  return budget;
}

}  // namespace llmi

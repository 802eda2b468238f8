// A sequence's memory of its draws: mirostat's bound and adaptive_p's average. All other steps are functions of the history, the
// position and the row. The state belongs to one sequence: a fork copies it, and only drawn tokens change it.
#pragma once

#include <limits>
#include <span>

#include "kernels/ops/context.h"
#include "sampling/params.h"

namespace llmi {

struct SamplerState {
  static constexpr double kUnset = std::numeric_limits<double>::quiet_NaN();  // before the first draw
  double mu = kUnset;                                                         // mirostat: the most bits of surprise that a token may have
  double weighted_sum = kUnset;                                               // adaptive_p: of drawn tokens' probabilities before it
  double total_weight = kUnset;                                               // adaptive_p: of their weights
};

// Whether the parameters have a step with state.
bool KeepsState(const SamplingParams& params);

// Mirostat's bound: 2 mirostat_tau before the first draw.
double MirostatBound(const SamplingParams& params, const SamplerState& state);
// The probability that adaptive_p prefers: 2 adaptive_p less the average, in [0, 1].
double AdaptedTarget(const SamplingParams& params, const SamplerState& state);

// The state after `token` was drawn from a row. law: the row's processed law. before: the row before adaptive_p, as FilterLogits returns
// it. A token that the law cuts changes nothing.
//     mirostat:    mu -= mirostat_eta (surprise - mirostat_tau), surprise = -log2 of the token's probability under the law
//     adaptive_p:  weighted_sum = p + decay weighted_sum, total_weight = 1 + decay total_weight, p: its probability in `before`
SamplerState NextState(const KernelContext& context, const SamplingParams& params, const SamplerState& state, std::span<const float> law,
                       std::span<const float> before, int32_t token);

}  // namespace llmi

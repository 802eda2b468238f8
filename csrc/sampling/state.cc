#include "sampling/state.h"

#include <algorithm>
#include <cmath>

#include "sampling/filters/row.h"
#include "sampling/steps.h"

namespace llmi {
namespace {

SamplerState Begun(const SamplingParams& params, SamplerState state) {
  if (std::isnan(state.mu)) state.mu = 2 * params.mirostat_tau;
  if (std::isnan(state.total_weight)) {  // as if all earlier draws had met the target
    state.total_weight = 1 / (1 - params.adaptive_p_decay);
    state.weighted_sum = params.adaptive_p * state.total_weight;
  }
  return state;
}

}  // namespace

bool KeepsState(const SamplingParams& params) {
  return !params.greedy() && (HasStep(params, SamplerStep::kMirostat) || HasStep(params, SamplerStep::kAdaptiveP));
}

double MirostatBound(const SamplingParams& params, const SamplerState& state) { return Begun(params, state).mu; }

double AdaptedTarget(const SamplingParams& params, const SamplerState& state) {
  const SamplerState begun = Begun(params, state);
  return std::clamp(2 * params.adaptive_p - begun.weighted_sum / begun.total_weight, 0.0, 1.0);
}

SamplerState NextState(const KernelContext& context, const SamplingParams& params, const SamplerState& state, std::span<const float> law,
                       std::span<const float> before, int32_t token) {
  if (!KeepsState(params) || !(law[static_cast<size_t>(token)] > kMinusInfinity)) return state;
  SamplerState next = state;
  const SamplerState begun = Begun(params, state);
  if (HasStep(params, SamplerStep::kMirostat)) {
    const double surprise = RowMasses(context, law).Surprise(token);
    next.mu = begun.mu - params.mirostat_eta * (surprise - params.mirostat_tau);
  }
  if (HasStep(params, SamplerStep::kAdaptiveP)) {
    next.weighted_sum = RowMasses(context, before).Probability(token) + params.adaptive_p_decay * begun.weighted_sum;
    next.total_weight = 1 + params.adaptive_p_decay * begun.total_weight;
  }
  return next;
}

}  // namespace llmi

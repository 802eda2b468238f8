// The steps that parameters put between a row of logits and its law, and the order in which they run.
//
// Masks, no_repeat_ngram_size and logit_bias come first in every order and are not among the steps. A penalty that the order names before
// every filter runs before the user's processors, one that it names later in its place among the filters.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "sampling/params.h"

namespace llmi {

// In the default order.
enum class SamplerStep : uint8_t {
  kRepetitionPenalty,
  kFrequencyPenalty,
  kPresencePenalty,
  kDry,
  kTopNSigma,
  kTemperature,  // temperature, or dynatemp_range in its place
  kMinP,
  kTopK,
  kTopP,
  kTypicalP,
  kEpsilonCutoff,
  kEtaCutoff,
  kTopH,
  kPLess,
  kXtc,
  kAdaptiveP,
  kMirostat,
};
constexpr size_t kNumSamplerSteps = 17;

// The parameter that names a step in sampler_order.
const char* StepName(SamplerStep step);
// Whether the parameters have the step; at temperature 0 too, where filters change nothing.
bool HasStep(const SamplingParams& params, SamplerStep step);
// The three penalties and DRY, which depend on the history; the others are filters.
inline bool IsPenalty(SamplerStep step) { return step <= SamplerStep::kDry; }

struct SamplerSteps {
  std::array<SamplerStep, kNumSamplerSteps> steps = {};
  size_t count = 0;
  size_t num_early = 0;  // the first ones, all of them penalties, run before the user's processors
  const SamplerStep* begin() const { return steps.data(); }
  const SamplerStep* end() const { return steps.data() + count; }
  const SamplerStep* late() const { return begin() + num_early; }
  bool operator==(const SamplerSteps&) const = default;
};

// The steps that change a row, in the order in which they run. At temperature 0 only penalties do.
SamplerSteps StepsOf(const SamplingParams& params);

// Throws Error(kInvalidArgument) for a sampler_order that repeats a name, holds an unknown one or lacks a step that the parameters have.
void CheckOrder(const SamplingParams& params);

// Whether the filters are at most temperature, min-p, top-k and top-p, in this order, which a device runs while it draws.
bool HasPlainFilters(const SamplingParams& params);
// The steps that no device can take (kernels/draws/draw.h): DRY, penalties that are out of their order or among the filters, and what
// remembers earlier draws.
std::vector<SamplerStep> StepsOnHost(const SamplingParams& params);
// Whether there are none. Other rows are drawn on the host.
bool DrawsOnDevice(const SamplingParams& params);

}  // namespace llmi

#include "sampling/steps.h"

#include <algorithm>
#include <string>

#include "core/errors.h"

namespace llmi {
namespace {

constexpr std::array<const char*, kNumSamplerSteps> kNames = {"repetition_penalty",
                                                              "frequency_penalty",
                                                              "presence_penalty",
                                                              "dry_multiplier",
                                                              "top_n_sigma",
                                                              "temperature",
                                                              "min_p",
                                                              "top_k",
                                                              "top_p",
                                                              "typical_p",
                                                              "epsilon_cutoff",
                                                              "eta_cutoff",
                                                              "top_h",
                                                              "p_less",
                                                              "xtc_probability",
                                                              "adaptive_p",
                                                              "mirostat"};

SamplerStep StepAt(size_t index) { return static_cast<SamplerStep>(index); }

// Its index in kNames; kNumSamplerSteps: there is none.
size_t IndexOf(const std::string& name) { return static_cast<size_t>(std::find(kNames.begin(), kNames.end(), name) - kNames.begin()); }

}  // namespace

const char* StepName(SamplerStep step) { return kNames[static_cast<size_t>(step)]; }

bool HasStep(const SamplingParams& params, SamplerStep step) {
  switch (step) {
    case SamplerStep::kRepetitionPenalty: return params.repetition_penalty != 1.0;
    case SamplerStep::kFrequencyPenalty: return params.frequency_penalty != 0.0;
    case SamplerStep::kPresencePenalty: return params.presence_penalty != 0.0;
    case SamplerStep::kDry: return params.dry_multiplier > 0.0 && params.dry_penalty_last_n != 0;
    case SamplerStep::kTopNSigma: return params.top_n_sigma > 0.0;
    case SamplerStep::kTemperature: return params.temperature != 0.0 && (params.temperature != 1.0 || params.dynatemp_range > 0.0);
    case SamplerStep::kMinP: return params.min_p > 0.0;
    case SamplerStep::kTopK: return params.top_k > 0;
    case SamplerStep::kTopP: return params.top_p < 1.0;
    case SamplerStep::kTypicalP: return params.typical_p < 1.0;
    case SamplerStep::kEpsilonCutoff: return params.epsilon_cutoff > 0.0;
    case SamplerStep::kEtaCutoff: return params.eta_cutoff > 0.0;
    case SamplerStep::kTopH: return params.top_h > 0.0;
    case SamplerStep::kPLess: return params.p_less;
    case SamplerStep::kXtc: return params.xtc_probability > 0.0;
    case SamplerStep::kAdaptiveP: return params.adaptive_p >= 0.0;
    case SamplerStep::kMirostat: return params.mirostat != 0;
  }
  return false;
}

SamplerSteps StepsOf(const SamplingParams& params) {
  SamplerSteps list;
  bool filters = false;
  const auto add = [&](SamplerStep step) {
    filters = filters || !IsPenalty(step);
    if (!HasStep(params, step) || (params.greedy() && !IsPenalty(step))) return;
    list.steps[list.count++] = step;
    if (!filters) list.num_early = list.count;
  };
  if (params.sampler_order.empty()) {
    for (size_t i = 0; i < kNumSamplerSteps; ++i) add(StepAt(i));
  } else {
    for (const std::string& name : params.sampler_order) {
      if (const size_t index = IndexOf(name); index < kNumSamplerSteps) add(StepAt(index));
    }
  }
  return list;
}

void CheckOrder(const SamplingParams& params) {
  if (params.sampler_order.empty()) return;
  const auto fail = [](const std::string& problem) {
    throw Error(ErrorKind::kInvalidArgument, "sampler_order " + problem, "sampler_order");
  };
  std::array<bool, kNumSamplerSteps> named = {};
  for (const std::string& name : params.sampler_order) {
    const size_t index = IndexOf(name);
    if (index == kNumSamplerSteps) fail("holds the unknown name '" + name + "'");
    if (named[index]) fail("holds '" + name + "' twice");
    named[index] = true;
  }
  for (size_t i = 0; i < kNumSamplerSteps; ++i) {
    if (!named[i] && HasStep(params, StepAt(i))) fail("lacks '" + std::string(kNames[i]) + "', which is set");
  }
}

bool HasPlainFilters(const SamplingParams& params) {
  const auto is_plain = [](SamplerStep step) { return step >= SamplerStep::kTemperature && step <= SamplerStep::kTopP; };
  if (!params.greedy() && params.dynatemp_range > 0) return false;
  const SamplerSteps steps = StepsOf(params);
  return std::all_of(steps.late(), steps.end(), is_plain) && std::is_sorted(steps.late(), steps.end());
}

std::vector<SamplerStep> StepsOnHost(const SamplingParams& params) {
  const SamplerSteps steps = StepsOf(params);
  std::vector<SamplerStep> on_host;
  for (const SamplerStep* step = steps.begin(); step != steps.end(); ++step) {
    const bool is_known = step < steps.late() ? *step <= SamplerStep::kPresencePenalty && (step == steps.begin() || step[-1] < *step)
                                              : *step >= SamplerStep::kTopNSigma && *step <= SamplerStep::kXtc;
    if (!is_known) on_host.push_back(*step);
  }
  return on_host;
}

bool DrawsOnDevice(const SamplingParams& params) { return StepsOnHost(params).empty(); }

}  // namespace llmi

// The filters that a device can run (definitions: sampling/filters/filters.h), as a list of steps for a row, and what host and device
// share of them. The host runs them in sampling/filters, a device in kernels/cuda/filter_kernel.h, with the same bits: masses are integers,
// and a sum of other numbers runs over 16 lanes, lane = id mod 16, each in the order of its ids, folded by halves.
#pragma once

#include <stdint.h>

#include "core/scalar_math.h"

namespace llmi {

enum class FilterKind : uint8_t {
  kTopNSigma,
  kTemperature,
  kDynamicTemperature,
  kMinP,
  kTopK,
  kTopP,
  kTypicalP,
  kEpsilonCutoff,
  kEtaCutoff,
  kTopH,
  kPLess,
  kXtc,  // at a position whose coin excludes top choices
};

struct FilterStep {
  FilterKind kind;
  double value;  // the parameter; of kXtc the threshold
  // Parameters of kDynamicTemperature, in addition to the temperature.
  double range = 0.0;
  double exponent = 1.0;
};

constexpr int64_t kTopHTokens = 100;         // that top_h looks at, as in transformers
constexpr double kLeastTemperature = 1e-30;  // that a parameter may have

// ln of the sum of exp(logit - maximum), from the sum of the masses.
LLMI_HD static inline double LogTotalOf(uint64_t total) { return LogF64(static_cast<double>(total) * 0x1p-40); }
// logit - maximum, times the mass: a term of the mean offset. 0 without mass, whatever the logit.
LLMI_HD static inline double OffsetTerm(uint64_t mass, float logit, float maximum) {
  return mass == 0 ? 0.0 : static_cast<double>(mass) * (static_cast<double>(logit) - static_cast<double>(maximum));
}
// In nats. mean_offset: the sum of the terms above, divided by the total.
LLMI_HD static inline double EntropyOf(uint64_t total, double mean_offset) {
  const double entropy = LogTotalOf(total) - mean_offset;
  return entropy > 0.0 ? entropy : 0.0;
}

// base^exponent for base in [0, 1].
LLMI_HD static inline double UnitPower(double base, double exponent) {
  if (exponent == 0) return 1.0;
  if (base <= 0) return 0.0;
  const double log_power = exponent * LogF64(base);
  return log_power < -700 ? 0.0 : ExpF64(log_power);
}
// The temperature of a row with this entropy and number of tokens, 2 or more. Below kLeastTemperature: the first token alone is kept.
LLMI_HD static inline double DynamicTemperature(const FilterStep& step, double entropy, uint64_t num_tokens) {
  const double relative = entropy / LogF64(static_cast<double>(num_tokens));
  const double share = relative < 1.0 ? relative : 1.0;
  const double low = step.value > step.range ? step.value - step.range : 0.0;
  return low + (step.value + step.range - low) * UnitPower(share, step.exponent);
}

// The probability below which eta sampling cuts.
LLMI_HD static inline double EtaOf(double epsilon, double entropy) {
  const double eta = SqrtF64(epsilon) * ExpF64(-entropy);
  return eta < epsilon ? eta : epsilon;
}

// A term -p ln p of top_h, p = mass / total of the tokens that it looks at.
LLMI_HD static inline double TopHTerm(uint64_t mass, uint64_t total, double offset) {
  return static_cast<double>(mass) / static_cast<double>(total) * (LogTotalOf(total) - offset);
}

}  // namespace llmi

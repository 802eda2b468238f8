#include <algorithm>
#include <cmath>
#include <string>

#include "core/errors.h"
#include "kernels/ops/vocab.h"
#include "sampling/filters/filters.h"
#include "sampling/filters/row.h"

namespace llmi {
namespace {

constexpr double kLeastTemperature = 1e-30;  // that a parameter may have

// base^exponent for base in [0, 1].
double Power(double base, double exponent) {
  if (exponent == 0) return 1.0;
  if (base <= 0) return 0.0;
  const double log_power = exponent * LogF64(base);
  return log_power < -700 ? 0.0 : ExpF64(log_power);
}

}  // namespace

void Temper(const KernelContext& context, double temperature, Row row) {
  const auto divisor = static_cast<float>(temperature);
  const auto size = static_cast<int64_t>(row.size());
  for (float& logit : row) logit = logit / divisor;
  const int64_t best = ArgMax(context, row.data(), size);
  if (best < 0) {
    throw Error(ErrorKind::kNonFiniteLogits, "temperature " + std::to_string(temperature) + " makes a logit infinite", "temperature");
  }
}

void TemperByEntropy(const KernelContext& context, double temperature, double range, double exponent, Row row) {
  int32_t kept = 0;
  for (const float logit : row) kept += logit > kMinusInfinity ? 1 : 0;
  if (kept <= 1) return;
  const RowMasses masses(context, row);
  const double share = std::min(1.0, masses.Entropy() / LogF64(static_cast<double>(kept)));
  const double low = std::max(0.0, temperature - range);
  const double chosen = low + (temperature + range - low) * Power(share, exponent);
  if (chosen < kLeastTemperature) {
    const auto best = static_cast<int32_t>(masses.best());
    KeepOnly({&best, 1}, row);
  } else {
    Temper(context, chosen, row);
  }
}

}  // namespace llmi

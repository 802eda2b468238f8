#include <algorithm>
#include <string>

#include "core/errors.h"
#include "kernels/ops/vocab.h"
#include "sampling/filters/filters.h"
#include "sampling/filters/row.h"

namespace llmi {
void Temper(const KernelContext& context, double temperature, Row row) {
  const auto divisor = static_cast<float>(temperature);
  const auto size = static_cast<int64_t>(row.size());
  for (float& logit : row) logit = logit / divisor;
  const int64_t best = ArgMax(context, row.data(), size);
  if (best < 0) {
    throw Error::NonFiniteByParameters("temperature " + std::to_string(temperature) + " makes a logit infinite");
  }
}

void TemperByEntropy(const KernelContext& context, double temperature, double range, double exponent, Row row) {
  int32_t kept = 0;
  for (const float logit : row) kept += logit > kMinusInfinity ? 1 : 0;
  if (kept <= 1) return;
  const RowMoments moments(context, row);
  const FilterStep step = {FilterKind::kDynamicTemperature, temperature, range, exponent};
  const double chosen = DynamicTemperature(step, moments.Entropy(), static_cast<uint64_t>(kept));
  if (chosen < kLeastTemperature) {
    const auto best = static_cast<int32_t>(moments.best());
    KeepOnly({&best, 1}, row);
  } else {
    Temper(context, chosen, row);
  }
}

}  // namespace llmi

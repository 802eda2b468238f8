#include <cmath>

#include "sampling/filters/filters.h"
#include "sampling/filters/row.h"

namespace llmi {

void AdaptLogits(const KernelContext& context, double target, Row row) {
  // The constants of llama.cpp.
  constexpr double kPeak = 5.0;
  constexpr double kSharpness = 10.0;
  constexpr double kWidth = 0.3;
  const RowMasses masses(context, row);
  for (size_t i = 0; i < row.size(); ++i) {
    if (row[i] == kMinusInfinity) continue;
    const double distance = std::fabs(masses.Probability(static_cast<int64_t>(i)) - target) / kWidth;
    row[i] = static_cast<float>(kPeak - kSharpness * distance * distance / (1.0 + distance));
  }
}

}  // namespace llmi

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "kernels/draws/draw.h"
#include "sampling/filters/filters.h"
#include "sampling/filters/row.h"

namespace llmi {
// -ln p - H = MeanOffset - Offset, so logarithms are not needed.
void KeepTypical(const KernelContext& context, double mass, Row row) {
  const RowMoments moments(context, row);
  const double mean = moments.MeanOffset();
  const auto distance = [&](int32_t id) { return std::fabs(mean - moments.Offset(id)); };
  const auto before = [&](int32_t a, int32_t b) {
    const double one = distance(a);
    const double other = distance(b);
    return one < other || (one == other && a < b);
  };
  const uint64_t wanted = WantedMass(mass, moments.total());
  constexpr double kAll = std::numeric_limits<double>::infinity();
  // Looks at the tokens near the mean first, since few may be needed.
  for (const double reach : {2.0, 6.0, kAll}) {
    std::vector<int32_t> ids = IdsAbove(row, static_cast<float>(moments.maximum() + mean - reach - 1e-3));
    std::erase_if(ids, [&](int32_t id) { return distance(id) > reach; });
    const MassesOf masses(context, row, moments.maximum(), ids);
    if (MassOf(masses, ids) < wanted && reach < kAll) continue;
    return KeepOnly(PrefixOfMass(masses, wanted, distance, before, std::move(ids)), row);
  }
}

}  // namespace llmi

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "kernels/draws/draw.h"
#include "sampling/filters/filters.h"
#include "sampling/filters/row.h"

namespace llmi {
void KeepTopK(int64_t k, Row row) {
  if (k < static_cast<int64_t>(row.size())) KeepOnly(TopIds(row, k), row);
}

// Looks at the tokens near the maximum first, since usually few are needed.
void KeepTopP(const KernelContext& context, double mass, Row row) {
  const RowMasses masses(context, row);
  const uint64_t wanted = WantedMass(mass, masses.total());
  const auto distance = [&](int32_t id) { return -masses.Offset(id); };
  for (const float reach : {4.0f, 9.0f, 14.0f, std::numeric_limits<float>::infinity()}) {
    std::vector<int32_t> ids = IdsAbove(row, masses.maximum() - reach);
    if (MassOf(masses, ids) < wanted) continue;
    return KeepOnly(PrefixOfMass(masses, wanted, distance, ByRank{row.data()}, std::move(ids)), row);
  }
}

void KeepTopH(const KernelContext& context, double share, Row row) {
  std::vector<int32_t> ids = RankedTopIds(row, kTopHTokens);
  const RowMasses masses(context, row);
  uint64_t total = 0;
  for (const int32_t id : ids) total += masses[id];
  std::vector<double> sums;  // of the terms -p ln p, in the order of ranks
  double sum = 0;
  for (const int32_t id : ids) {
    sum += TopHTerm(masses[id], total, masses.Offset(id));
    sums.push_back(sum);
  }
  const double most = share * sum;
  const auto is_kept = [&](double so_far) { return so_far <= most; };
  const auto kept = std::find_if_not(sums.begin(), sums.end(), is_kept) - sums.begin();
  ids.resize(static_cast<size_t>(std::max<int64_t>(1, kept)));
  KeepOnly(ids, row);
}

void CutTopChoices(const KernelContext& context, double threshold, Row row) {
  if (threshold > 0.5) return;
  const RowMasses masses(context, row);
  const double least = threshold * static_cast<double>(masses.total());
  const ByRank ranks_before{row.data()};
  // p >= threshold needs a logit of at least maximum + ln threshold, and the total may exceed the likeliest token's mass.
  const double lowest = threshold > 0 ? masses.maximum() + LogF64(threshold) - 0.01 : -std::numeric_limits<double>::infinity();
  std::vector<int32_t> choices;
  int32_t last = -1;
  for (const int32_t id : IdsAbove(row, static_cast<float>(lowest))) {
    if (MassValue(masses[id]) < least) continue;
    choices.push_back(id);
    if (last < 0 || ranks_before(last, id)) last = id;
  }
  for (const int32_t id : choices) {
    if (id != last) row[static_cast<size_t>(id)] = kMinusInfinity;
  }
}

}  // namespace llmi

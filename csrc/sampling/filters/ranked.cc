#include <algorithm>
#include <array>
#include <bit>
#include <vector>

#include "kernels/draws/draw.h"
#include "sampling/filters/filters.h"
#include "sampling/filters/row.h"

namespace llmi {
namespace {

int MassBucket(uint64_t mass) { return static_cast<int>(std::bit_width(mass)); }  // 0: no mass

}  // namespace

void KeepTopK(int64_t k, Row row) {
  if (k < static_cast<int64_t>(row.size())) KeepOnly(TopIds(row, k), row);
}

// A better rank never has a smaller mass, so tokens are first sorted into buckets by the power of two of their mass; ranks matter only
// inside the bucket in which the sum is reached.
void KeepTopP(const KernelContext& context, double mass, Row row) {
  const RowMasses masses(context, row);
  const auto size = static_cast<int64_t>(row.size());
  std::array<uint64_t, 65> sums{};
  for (int64_t i = 0; i < size; ++i) sums[static_cast<size_t>(MassBucket(masses[i]))] += masses[i];
  const uint64_t wanted = WantedMass(mass, masses.total());
  int bucket = 64;
  uint64_t sum = 0;
  for (; bucket > 1 && sum + sums[static_cast<size_t>(bucket)] < wanted; --bucket) sum += sums[static_cast<size_t>(bucket)];
  std::vector<int32_t> order;
  for (int64_t i = 0; i < size; ++i) {
    const int own = MassBucket(masses[i]);
    if (own == bucket) order.push_back(static_cast<int32_t>(i));
    if (own < bucket) row[static_cast<size_t>(i)] = kMinusInfinity;
  }
  // Ranks are sorted piece by piece, since usually few are needed.
  size_t sorted = 0;
  size_t count = 0;
  for (size_t piece = 64; count < order.size() && sum < wanted; piece *= 8) {
    const size_t end = std::min(order.size(), sorted + piece);
    std::partial_sort(order.begin() + static_cast<int64_t>(sorted), order.begin() + static_cast<int64_t>(end), order.end(),
                      ByRank{row.data()});
    for (; count < end && sum < wanted; ++count) sum += masses[order[count]];
    sorted = end;
  }
  for (size_t i = count; i < order.size(); ++i) row[static_cast<size_t>(order[i])] = kMinusInfinity;
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
  std::vector<int32_t> choices;
  int32_t last = -1;
  for (size_t i = 0; i < row.size(); ++i) {
    if (row[i] == kMinusInfinity || static_cast<double>(masses[static_cast<int64_t>(i)]) < least) continue;
    const auto id = static_cast<int32_t>(i);
    choices.push_back(id);
    if (last < 0 || ranks_before(last, id)) last = id;
  }
  for (const int32_t id : choices) {
    if (id != last) row[static_cast<size_t>(id)] = kMinusInfinity;
  }
}

}  // namespace llmi

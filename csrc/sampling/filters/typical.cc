#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/draws/draw.h"
#include "sampling/filters/filters.h"
#include "sampling/filters/row.h"

namespace llmi {
namespace {

struct Candidate {
  double distance;  // |-ln p - H|
  int32_t id;
  bool operator<(const Candidate& other) const { return distance < other.distance || (distance == other.distance && id < other.id); }
};

}  // namespace

// -ln p - H = MeanOffset - Offset, so logarithms are not needed.
void KeepTypical(const KernelContext& context, double mass, Row row) {
  const RowMasses masses(context, row);
  const double mean = masses.MeanOffset();
  std::vector<Candidate> order;
  for (size_t i = 0; i < row.size(); ++i) {
    const auto id = static_cast<int32_t>(i);
    if (row[i] > kMinusInfinity) order.push_back({std::fabs(mean - masses.Offset(id)), id});
  }
  const uint64_t wanted = WantedMass(mass, masses.total());
  // The order is made piece by piece, since few of its tokens may be needed.
  uint64_t sum = 0;
  size_t sorted = 0;
  size_t count = 0;
  for (size_t piece = 256; count < order.size() && sum < wanted; piece *= 8) {
    const size_t end = std::min(order.size(), sorted + piece);
    std::partial_sort(order.begin() + static_cast<int64_t>(sorted), order.begin() + static_cast<int64_t>(end), order.end());
    for (; count < end && sum < wanted; ++count) sum += masses[order[count].id];
    sorted = end;
  }
  for (size_t i = count; i < order.size(); ++i) row[static_cast<size_t>(order[i].id)] = kMinusInfinity;
}

}  // namespace llmi

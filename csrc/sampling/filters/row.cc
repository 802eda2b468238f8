#include "sampling/filters/row.h"

#include <algorithm>

#include "core/errors.h"
#include "kernels/ops/vocab.h"

namespace llmi {

RowMasses::RowMasses(const KernelContext& context, std::span<const float> row) : row_(row) {
  thread_local std::vector<uint64_t> masses;
  const auto size = static_cast<int64_t>(row.size());
  masses.resize(row.size());
  best_ = ArgMax(context, row.data(), size);
  CheckInternal(best_ >= 0, "a filter met a row of NaN or infinity, or one that keeps no token");
  TokenMasses(context, row.data(), size, maximum(), masses.data());
  masses_ = masses.data();
  for (const uint64_t mass : masses) total_ += mass;
}

double RowMasses::MeanOffset() const {
  const float maximum = this->maximum();
  const double sum = LaneSum(static_cast<int64_t>(row_.size()),
                             [&](int64_t i) { return OffsetTerm(masses_[i], row_[static_cast<size_t>(i)], maximum); });
  return sum / static_cast<double>(total_);
}

// One pass, which skips every token below the last one of the best `count` found so far.
std::vector<int32_t> TopIds(std::span<const float> row, int64_t count) {
  const auto kept = static_cast<size_t>(count);
  std::vector<int32_t> ids;
  float limit = kMinusInfinity;
  const auto cut = [&] {
    std::nth_element(ids.begin(), ids.begin() + count - 1, ids.end(), ByRank{row.data()});
    ids.resize(kept);
    limit = row[static_cast<size_t>(ids.back())];  // a later id with the same value ranks after it
  };
  for (size_t i = 0; i < row.size(); ++i) {
    if (!(row[i] > limit)) continue;
    ids.push_back(static_cast<int32_t>(i));
    if (ids.size() == 4 * kept + 64) cut();
  }
  if (ids.size() > kept) cut();
  return ids;
}

std::vector<int32_t> RankedTopIds(std::span<const float> row, int64_t count) {
  std::vector<int32_t> ids = TopIds(row, count);
  std::sort(ids.begin(), ids.end(), ByRank{row.data()});
  return ids;
}

void KeepOnly(std::span<const int32_t> ids, std::span<float> row) {
  std::vector<float> values(ids.size());
  for (size_t i = 0; i < ids.size(); ++i) values[i] = row[static_cast<size_t>(ids[i])];
  std::fill(row.begin(), row.end(), kMinusInfinity);
  for (size_t i = 0; i < ids.size(); ++i) row[static_cast<size_t>(ids[i])] = values[i];
}

}  // namespace llmi

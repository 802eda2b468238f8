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
  const auto maximum = static_cast<double>(this->maximum());
  const double sum = LaneSum(static_cast<int64_t>(row_.size()), [&](int64_t i) {
    const uint64_t mass = masses_[i];
    return mass == 0 ? 0.0 : MassValue(mass) * (static_cast<double>(row_[static_cast<size_t>(i)]) - maximum);
  });
  return sum / static_cast<double>(total_);
}

double RowMasses::Entropy() const { return std::max(0.0, LogTotal() - MeanOffset()); }

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

std::vector<int32_t> IdsAbove(std::span<const float> row, float limit) {
  constexpr size_t kBlock = 32;
  std::vector<int32_t> ids;
  for (size_t begin = 0; begin < row.size(); begin += kBlock) {
    const size_t end = std::min(row.size(), begin + kBlock);
    float largest = kMinusInfinity;
    if (end - begin == kBlock) {
      float lanes[4] = {kMinusInfinity, kMinusInfinity, kMinusInfinity, kMinusInfinity};
      for (size_t i = 0; i < kBlock; ++i) lanes[i % 4] = row[begin + i] > lanes[i % 4] ? row[begin + i] : lanes[i % 4];
      largest = std::max(std::max(lanes[0], lanes[1]), std::max(lanes[2], lanes[3]));
    } else {
      for (size_t i = begin; i < end; ++i) largest = std::max(largest, row[i]);
    }
    if (!(largest > limit)) continue;
    for (size_t i = begin; i < end; ++i) {
      if (row[i] > limit) ids.push_back(static_cast<int32_t>(i));
    }
  }
  return ids;
}

void KeepOnly(std::span<const int32_t> ids, std::span<float> row) {
  std::vector<float> values(ids.size());
  for (size_t i = 0; i < ids.size(); ++i) values[i] = row[static_cast<size_t>(ids[i])];
  std::fill(row.begin(), row.end(), kMinusInfinity);
  for (size_t i = 0; i < ids.size(); ++i) row[static_cast<size_t>(ids[i])] = values[i];
}

}  // namespace llmi

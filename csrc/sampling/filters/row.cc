#include "sampling/filters/row.h"

#include <algorithm>
#include <limits>

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
    // Cut tokens have no mass: any finite number will do for their logit.
    const float logit = std::max(std::numeric_limits<float>::lowest(), row_[static_cast<size_t>(i)]);
    return MassValue(masses_[i]) * (static_cast<double>(logit) - maximum);
  });
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

std::vector<int32_t> IdsAbove(std::span<const float> row, float limit) {
  constexpr size_t kBlock = 32;
  thread_local std::vector<int32_t> found;
  found.resize(row.size() + 1);
  int32_t* ids = found.data();
  size_t count = 0;
  for (size_t begin = 0; begin < row.size(); begin += kBlock) {
    const float* block = row.data() + begin;
    const size_t size = std::min(row.size() - begin, kBlock);
    int32_t above = 0;
    for (size_t i = 0; i < size; ++i) above |= block[i] > limit ? 1 : 0;
    if (above == 0) continue;
    for (size_t i = 0; i < size; ++i) {  // each id is written, and stays if the next one is written after it
      ids[count] = static_cast<int32_t>(begin + i);
      count += block[i] > limit ? 1 : 0;
    }
  }
  return {ids, ids + count};
}

void KeepOnly(std::span<const int32_t> ids, std::span<float> row) {
  std::vector<float> values(ids.size());
  for (size_t i = 0; i < ids.size(); ++i) values[i] = row[static_cast<size_t>(ids[i])];
  std::fill(row.begin(), row.end(), kMinusInfinity);
  for (size_t i = 0; i < ids.size(); ++i) row[static_cast<size_t>(ids[i])] = values[i];
}

}  // namespace llmi

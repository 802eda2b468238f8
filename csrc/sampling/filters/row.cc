#include "sampling/filters/row.h"

#include <algorithm>
#include <limits>

#include "core/errors.h"
#include "kernels/ops/vocab.h"

namespace llmi {

namespace {

// Memory for the masses of a row, of the calling thread.
uint64_t* MassMemory(size_t vocab_size) {
  thread_local std::vector<uint64_t> masses;
  masses.resize(std::max(masses.size(), vocab_size));
  return masses.data();
}

int64_t BestOf(const KernelContext& context, std::span<const float> row) {
  const int64_t best = ArgMax(context, row.data(), static_cast<int64_t>(row.size()));
  CheckInternal(best >= 0, "a filter met a row of NaN or infinity, or one that keeps no token");
  return best;
}

}  // namespace

RowMoments::RowMoments(const KernelContext& context, std::span<const float> row)
    : row_(row), best_(BestOf(context, row)), moments_(MomentsOfMasses(context, row.data(), static_cast<int64_t>(row.size()), maximum())) {}

MassesOf::MassesOf(const KernelContext& context, std::span<const float> row, float maximum, std::span<const int32_t> ids) {
  std::vector<float> values(ids.size());
  std::vector<uint64_t> masses(ids.size());
  for (size_t i = 0; i < ids.size(); ++i) values[i] = row[static_cast<size_t>(ids[i])];
  TokenMasses(context, values.data(), static_cast<int64_t>(ids.size()), maximum, masses.data());
  uint64_t* memory = MassMemory(row.size());
  for (size_t i = 0; i < ids.size(); ++i) memory[ids[i]] = masses[i];
  masses_ = memory;
}

RowMasses::RowMasses(const KernelContext& context, std::span<const float> row) : row_(row), best_(BestOf(context, row)) {
  uint64_t* masses = MassMemory(row.size());
  TokenMasses(context, row.data(), static_cast<int64_t>(row.size()), maximum(), masses);
  masses_ = masses;
  uint64_t total = 0;  // in a register: a member might be one of the masses, for all that compilers know
  for (size_t i = 0; i < row.size(); ++i) total += masses[i];
  total_ = total;
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

// The masses of one row of logits, from which filters take probabilities and entropies. They are integers (kernels/ops/vocab.h), so every
// order of addition gives the same total. Sums of other numbers run over 16 lanes, lane = id mod 16, each in the order of its ids; the
// lanes are folded by halves: 8, 4, 2, 1.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "core/scalar_math.h"
#include "kernels/draws/filters.h"
#include "kernels/ops/context.h"
#include "kernels/ops/vocab.h"

namespace llmi {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
constexpr double kLn2 = 0.69314718055994530942;

// sum of term(i) for i in [0, size), in the order above.
template <typename Term>
double LaneSum(int64_t size, const Term& term) {
  constexpr int64_t kLanes = 16;
  double lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] += term(i + lane);
  }
  for (int64_t lane = 0; i + lane < size; ++lane) lanes[lane] += term(i + lane);
  for (int64_t half = kLanes / 2; half > 0; half /= 2) {
    for (int64_t lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
  }
  return lanes[0];
}

// A mass as a double, which holds it exactly: masses are below 2^52. In this form compilers convert several at once.
inline double MassValue(uint64_t mass) { return std::bit_cast<double>(mass | 0x4330000000000000u) - 0x1p52; }

// A row's law without a list of its masses.
class RowMoments {
 public:
  // row [vocab_size]: some logit is finite, none NaN or +inf.
  RowMoments(const KernelContext& context, std::span<const float> row);

  uint64_t total() const { return moments_.total; }
  int64_t best() const { return best_; }
  float maximum() const { return row_[static_cast<size_t>(best_)]; }
  double Offset(int64_t id) const { return static_cast<double>(row_[static_cast<size_t>(id)]) - static_cast<double>(maximum()); }
  // The mean of Offset under the row's law.
  double MeanOffset() const { return moments_.product / static_cast<double>(moments_.total); }
  // In nats: LogTotal - MeanOffset.
  double Entropy() const { return EntropyOf(moments_.total, MeanOffset()); }

 private:
  std::span<const float> row_;
  int64_t best_;
  MassMoments moments_;
};

// The masses of some tokens of a row.
class MassesOf {
 public:
  // In memory of the calling thread, as those of RowMasses.
  MassesOf(const KernelContext& context, std::span<const float> row, float maximum, std::span<const int32_t> ids);
  uint64_t operator[](int64_t id) const { return masses_[id]; }  // id: one of them

 private:
  const uint64_t* masses_;
};

class RowMasses {
 public:
  // row [vocab_size]: some logit is finite, none NaN or +inf. The masses are in memory of the calling thread that its next RowMasses
  // overwrites.
  RowMasses(const KernelContext& context, std::span<const float> row);

  uint64_t operator[](int64_t id) const { return masses_[id]; }
  const uint64_t* data() const { return masses_; }
  uint64_t total() const { return total_; }
  // The likeliest token, the lowest id among equals, and its logit.
  int64_t best() const { return best_; }
  float maximum() const { return row_[static_cast<size_t>(best_)]; }
  // logit - maximum.
  double Offset(int64_t id) const { return static_cast<double>(row_[static_cast<size_t>(id)]) - static_cast<double>(maximum()); }
  double Probability(int64_t id) const { return MassValue(masses_[id]) / static_cast<double>(total_); }
  // ln of the sum of exp(logit - maximum).
  double LogTotal() const { return LogTotalOf(total_); }
  // -log2 of the token's probability, from its logit: finite for tokens without mass, too.
  double Surprise(int64_t id) const { return (LogTotal() - Offset(id)) / kLn2; }

 private:
  std::span<const float> row_;
  const uint64_t* masses_ = nullptr;
  uint64_t total_ = 0;
  int64_t best_ = -1;
};

// Tokens rank by logit, descending, then by id, ascending.
struct ByRank {
  const float* row;
  bool operator()(int32_t a, int32_t b) const { return row[a] > row[b] || (row[a] == row[b] && a < b); }
};

// The first `count` tokens that are not cut, in no particular order.
std::vector<int32_t> TopIds(std::span<const float> row, int64_t count);
// The same, ranked.
std::vector<int32_t> RankedTopIds(std::span<const float> row, int64_t count);

// The sum of these tokens' masses.
template <typename Masses>
uint64_t MassOf(const Masses& masses, std::span<const int32_t> ids) {
  uint64_t sum = 0;
  for (const int32_t id : ids) sum += masses[id];
  return sum;
}

// Tokens with a logit above the limit, by id.
std::vector<int32_t> IdsAbove(std::span<const float> row, float limit);

// The shortest prefix of `ids` in the order of `before` whose masses sum to `wanted` or more, in no particular order; all of them if their
// sum is less. distance(id) >= 0 never falls in that order: ids are first sorted into rings of it, and only one ring is sorted further.
template <typename Masses, typename Distance, typename Before>
std::vector<int32_t> PrefixOfMass(const Masses& masses, uint64_t wanted, const Distance& distance, const Before& before,
                                  std::vector<int32_t> ids) {
  constexpr size_t kRings = 256;
  const auto ring_of = [&](int32_t id) { return static_cast<size_t>(std::min(8 * distance(id), static_cast<double>(kRings - 1))); };
  std::array<uint64_t, kRings> sums{};
  std::vector<uint8_t> rings(ids.size());
  for (size_t i = 0; i < ids.size(); ++i) {
    rings[i] = static_cast<uint8_t>(ring_of(ids[i]));
    sums[rings[i]] += masses[ids[i]];
  }
  size_t last = 0;
  uint64_t sum = 0;
  for (; last + 1 < kRings && sum + sums[last] < wanted; ++last) sum += sums[last];
  std::vector<int32_t> kept;
  std::vector<int32_t> in_ring;
  for (size_t i = 0; i < ids.size(); ++i) {
    if (rings[i] < last) kept.push_back(ids[i]);
    if (rings[i] == last) in_ring.push_back(ids[i]);
  }
  std::sort(in_ring.begin(), in_ring.end(), before);
  for (size_t i = 0; i < in_ring.size() && sum < wanted; ++i) {
    kept.push_back(in_ring[i]);
    sum += masses[in_ring[i]];
  }
  return kept;
}

// Cuts all tokens but these.
void KeepOnly(std::span<const int32_t> ids, std::span<float> row);

}  // namespace llmi

// What the kernels of bf16 attention on tensor cores share: products of tiles of which some rows do not see all.
#pragma once

#include "kernels/cuda/sight.h"
#include "kernels/cuda/warp.h"

namespace llmi::cuda {

constexpr int kBf16AttentionWarps = 8;
constexpr int kMatrixQueries = 16;  // of one instruction
static_assert(kBf16AttentionWarps <= kMostWarps);

// The instruction's A: 16 rows of words, `stride` apart, eight of each from `word` on.
LLMI_HD inline HalfMatrixA LoadHalfA(const uint32_t* words, int stride, int word, int lane) {
  const uint32_t* upper = words + lane / 4 * stride + word + lane % 4;
  const uint32_t* lower = upper + 8 * stride;
  return {{upper[0], lower[0], upper[4], lower[4]}};
}

// f(i, position): a lane's half i of the words of B, which holds the positions of a tile.
template <typename Visit>
LLMI_HD void ForEachHalf(int tile, int lane, const Visit& f) {
  LLMI_UNROLL
  for (int i = 0; i < 4; ++i) f(i, tile * static_cast<int>(kSlotsPerTile) + lane % 4 * 2 + i % 2 + i / 2 * 8);
}
template <typename Predicate>
LLMI_HD void KeepHalves(HalfMatrixB* b, int tile, int lane, const Predicate& seen) {
  ForEachHalf(tile, lane, [&](int i, int position) {
    if (!seen(position)) b->words[i / 2] &= i % 2 == 0 ? 0xFFFF0000u : 0xFFFFu;
  });
}

// Whether a value that only some rows see is not finite: for the other rows zero times it would not be zero.
template <typename Warp>
LLMI_HD bool HidesWhatIsNotFinite(const Warp& warp, const typename Warp::template PerLane<HalfMatrixB>& b, int tile, const Sight& sight) {
  typename Warp::template PerLane<bool> found;
  warp.ForEachLane([&](int lane) {
    ForEachHalf(tile, lane, [&](int i, int position) {
      const bool finite = (b[lane].words[i / 2] >> (16 * (i % 2)) & 0x7F80u) != 0x7F80u;
      if (!finite && !sight.AllSee(position)) found[lane] = true;
    });
  });
  return warp.Any(found);
}

// Computes each of the 16 queries separately, with the values that it sees, and discards the sums of the others. sees(query, position).
template <typename Warp, typename Sees>
LLMI_HD void AddQueryByQuery(const Warp& warp, const typename Warp::template PerLane<HalfMatrixA>& weights,
                             const typename Warp::template PerLane<HalfMatrixB>& b, int tile,
                             typename Warp::template PerLane<HalfMatrixD>& sums, const Sees& sees) {
  LLMI_ROLL
  for (int row = 0; row < kMatrixQueries; ++row) {
    typename Warp::template PerLane<HalfMatrixB> seen;
    typename Warp::template PerLane<HalfMatrixD> own;
    warp.ForEachLane([&](int lane) {
      seen[lane] = b[lane];
      KeepHalves(&seen[lane], tile, lane, [&](int position) { return sees(row, position); });
      own[lane] = sums[lane];
    });
    warp.MultiplyAdd(weights, seen, own);
    warp.ForEachLane([&](int lane) {
      for (int i = 0; i < 4; ++i) {
        if (MatrixRow(lane, i) == row) sums[lane].values[i] = own[lane].values[i];
      }
    });
  }
}

// Adds a tile's weighted values. Positions that no row sees count as zero, whatever their memory holds.
template <typename Warp, typename Sees>
LLMI_HD void AddTile(const Warp& warp, const Sight& sight, int tile, const typename Warp::template PerLane<HalfMatrixA>& weights,
                     typename Warp::template PerLane<HalfMatrixB>& b, typename Warp::template PerLane<HalfMatrixD>& sums,
                     const Sees& sees) {
  if (!sight.AllSeeTile(tile)) {
    warp.ForEachLane([&](int lane) { KeepHalves(&b[lane], tile, lane, [&](int position) { return sight.SomeSee(position); }); });
    if (HidesWhatIsNotFinite(warp, b, tile, sight)) return AddQueryByQuery(warp, weights, b, tile, sums, sees);
  }
  warp.MultiplyAdd(weights, b, sums);
}

}  // namespace llmi::cuda

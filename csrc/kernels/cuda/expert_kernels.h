// The steps of a layer's experts (kernels/ops/route.h and experts.h). Every grid depends on the numbers of rows and experts alone, so that
// recorded steps serve whichever experts the rows use.
#pragma once

#include <cstddef>

#include "core/scalar_math.h"
#include "kernels/cpu/reference/route_row.h"
#include "kernels/cuda/block.h"
#include "kernels/cuda/linear_kernels.h"
#include "kernels/cuda/row_codes.h"
#include "kernels/cuda/row_kernels.h"
#include "kernels/ops/experts.h"

namespace llmi::cuda {

// Block x: a row, by one thread: a row has few experts, and each step depends on the one before.
struct RouteKernel {
  static constexpr size_t kSharedBytes = kMostExperts * sizeof(float);
  RouteArgs args;

  template <typename Visit>
  void ForEachPointer(const Visit& visit) const {
    visit(args.logits);
    visit(args.choice_bias);
    visit(args.expert_scales);
    visit(args.experts);
    visit(args.weights);
  }

  template <typename Block>
  LLMI_HD void operator()(const Block& block) const {
    block.ForEachThread([&](int thread) {
      if (thread == 0) reference::RouteRow(args, block.x, reinterpret_cast<float*>(block.shared));
    });
  }
};

// Block x: an expert, or all of them together, whose first pair is the one behind the last. Threads take pairs that follow each other, so
// an expert's pairs keep their order.
struct SortPairsKernel {
  static constexpr size_t kSharedBytes = 2 * kRowThreads * sizeof(int32_t);
  ExpertPairs pairs;

  template <typename Visit>
  void ForEachPointer(const Visit& visit) const {
    visit(pairs.experts);
    visit(pairs.first);
    visit(pairs.rows);
    visit(pairs.places);
  }

  template <typename Block>
  LLMI_HD void operator()(const Block& block) const {
    const auto expert = static_cast<int32_t>(block.x);
    const int64_t count = pairs.num_pairs();
    int32_t* before = reinterpret_cast<int32_t*>(block.shared);  // pairs of lower experts among a thread's
    int32_t* own = before + kRowThreads;                         // pairs of this one; then the place of the first of them
    block.ForEachThread([&](int thread) {
      before[thread] = own[thread] = 0;
      for (int64_t i = count * thread / kRowThreads; i < count * (thread + 1) / kRowThreads; ++i) {
        before[thread] += pairs.experts[i] < expert ? 1 : 0;
        own[thread] += pairs.experts[i] == expert ? 1 : 0;
      }
    });
    block.ForEachThread([&](int thread) {
      if (thread != 0) return;
      int32_t place = 0;
      for (int i = 0; i < kRowThreads; ++i) place += before[i];
      pairs.first[expert] = place;
      for (int i = 0; i < kRowThreads; ++i) {
        const int32_t next = place + own[i];
        own[i] = place;
        place = next;
      }
    });
    block.ForEachThread([&](int thread) {
      int32_t place = own[thread];
      for (int64_t i = count * thread / kRowThreads; i < count * (thread + 1) / kRowThreads; ++i) {
        if (pairs.experts[i] != expert) continue;
        pairs.places[i] = place;
        pairs.rows[place++] = static_cast<int32_t>(i / pairs.num_used);
      }
    });
  }
};

// Block x: a pair.
struct GatherPairsKernel {
  const int32_t* pair_rows;
  const float* from_x;  // null: no fp32 rows are wanted
  QuantizedRows from;   // codes null: no quantised rows are wanted
  int64_t num_cols;
  float* to_x;
  QuantizedRows to;

  template <typename Visit>
  void ForEachPointer(const Visit& visit) const {
    visit(pair_rows);
    visit(from_x);
    visit(to_x);
    VisitPointers(from, visit);
    VisitPointers(to, visit);
  }

  template <typename Block>
  LLMI_HD void operator()(const Block& block) const {
    const int64_t blocks = num_cols / kBlockSize;
    block.ForEachThread([&](int thread) {
      const int64_t row = pair_rows[block.x];
      const auto copy = [&](const auto* values, int64_t size, auto* out) {
        if (values == nullptr || out == nullptr) return;
        for (int64_t i = thread; i < size; i += block.num_threads) out[block.x * size + i] = values[row * size + i];
      };
      copy(from_x, num_cols, to_x);
      copy(reinterpret_cast<const int32_t*>(from.codes), num_cols / 4, reinterpret_cast<int32_t*>(to.codes));
      copy(reinterpret_cast<const int32_t*>(from.low), num_cols / 4, reinterpret_cast<int32_t*>(to.low));
      copy(from.scales, (from.fine ? 2 : 1) * blocks, to.scales);
      copy(from.sums, blocks, to.sums);
      copy(from.half_sums, 2 * blocks, to.half_sums);
    });
  }
};

// Groups of kLinearRows pairs of one expert, as many as there may be.
inline int64_t MostPairGroups(const ExpertPairs& pairs) {
  return pairs.num_pairs() / kLinearRows + (pairs.num_experts < pairs.num_pairs() ? pairs.num_experts : pairs.num_pairs());
}

// Block x: a group of pairs of one expert, if there are so many; y: a tile of the experts' matrices.
template <typename Rows>
struct ExpertLinearKernel {
  static constexpr size_t kSharedBytes = LinearKernel<Rows>::kSharedBytes;
  LinearOutput output;  // weights: of all experts, with the rows of one
  Rows rows;
  ExpertPairs pairs;

  template <typename Visit>
  void ForEachPointer(const Visit& visit) const {
    output.ForEachPointer(visit);
    rows.ForEachPointer(visit);
    visit(pairs.first);
  }

  template <typename Block>
  LLMI_HD void operator()(const Block& block) const {
    int64_t group = block.x;
    int64_t expert = 0;
    for (; expert < pairs.num_experts; ++expert) {
      const int64_t groups = (pairs.First(expert + 1) - pairs.First(expert) + kLinearRows - 1) / kLinearRows;
      if (group < groups) break;
      group -= groups;
    }
    if (expert == pairs.num_experts) return;
    const PackedView& w = output.weights;
    const int64_t tile_bytes = PackedTileBytes(w.type, w.num_cols);
    const int64_t tiles_before = expert * NumTiles(w.num_rows);
    TileOutput tile = output.Tile(static_cast<int>(block.y), tile_bytes);
    tile.weights += tiles_before * tile_bytes;
    if (tile.bias != nullptr) tile.bias += tiles_before * kTileRows;
    LinearOutput own = output;
    own.num_rows = static_cast<int>(pairs.First(expert + 1));
    LinearTile(block, own, tile, rows, pairs.First(expert) + group * kLinearRows);
  }
};

// Block x: a row.
struct MixPairsKernel {
  ExpertPairs pairs;
  const float* weights;
  const float* values;
  int64_t size;
  float* out;

  template <typename Visit>
  void ForEachPointer(const Visit& visit) const {
    visit(pairs.places);
    visit(weights);
    visit(values);
    visit(out);
  }

  template <typename Block>
  LLMI_HD void operator()(const Block& block) const {
    block.ForEachThread([&](int thread) {
      const int64_t begin = block.x * pairs.num_used;
      for (int64_t i = thread; i < size; i += block.num_threads) {
        float sum = 0.0f;
        for (int64_t k = begin; k < begin + pairs.num_used; ++k) sum = Fma(weights[k], values[pairs.places[k] * size + i], sum);
        out[block.x * size + i] = sum;
      }
    });
  }
};

// Block x: a row.
struct AddGatedKernel {
  const float* x;
  const float* gates;
  int64_t size;
  float* out;

  template <typename Visit>
  void ForEachPointer(const Visit& visit) const {
    visit(x);
    visit(gates);
    visit(out);
  }

  template <typename Block>
  LLMI_HD void operator()(const Block& block) const {
    block.ForEachThread([&](int thread) {
      const float factor = gates != nullptr ? SigmoidF32(gates[block.x]) : 1.0f;
      for (int64_t i = block.x * size + thread; i < (block.x + 1) * size; i += block.num_threads) out[i] = Fma(factor, x[i], out[i]);
    });
  }
};

}  // namespace llmi::cuda

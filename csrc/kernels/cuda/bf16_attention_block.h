// Shared parts of the kernels of bf16 attention on tensor cores: q and the softmax's weights are rounded to bf16, products are exact, sums
// are fp32 in the GPU's own order (the numerics id says attn:bf16mma).
//
// The cache's words are the instruction's operand B without any conversion: a word of K holds two dimensions of a position, a word of V two
// positions of a dimension. Operand A holds 16 queries, pairs of a row and a head, which share the loads: heads of one KV head, and
// neighbouring rows of a chain. The choice of these queries changes neither the spans, nor their maxima, nor the order of calls (dimensions
// of a score from zero; positions of a span's values in steps of 16, from zero), nor the merge of spans. The instruction's outputs do not
// depend on each other, so a query's bits do not depend on the other queries.
#pragma once

#include <cstddef>

#include "core/bfloat16.h"
#include "core/scalar_math.h"
#include "kernels/cpu/reference/attention_path.h"
#include "kernels/cpu/reference/lanes.h"
#include "kernels/cuda/bf16_matrices.h"
#include "kernels/cuda/block.h"
#include "kernels/layout/kv_layout.h"
#include "kernels/ops/attention_score.h"

namespace llmi::cuda {

constexpr int kTileSlots = kSlotsPerTile;
constexpr int kSpanTiles = kAttentionSpan / kSlotsPerTile;

// The work of a block for 16 x kMatrices queries of a chain, with linear biases if kBiased (they take registers). A warp has
// 32 positions of the span's scores, then kDimGroups x 8 dimensions of its values.
template <int kMatrices, int kDimGroups, bool kBiased>
struct Bf16Attention {
  static constexpr int kQueries = kMatrices * kMatrixQueries;
  static constexpr int kMostHeadDim = kDimGroups * 8 * kBf16AttentionWarps;
  // The most registers of a thread: with 128 a multiprocessor holds two blocks; larger kernels need more, and it holds one.
  static constexpr int kMostRegisters = kBiased || kDimGroups > 8 ? 255 : 128;
  static constexpr int kPad = 4;  // words, so that lanes that read at the same time use different banks
  static constexpr int kWeightWords = kAttentionSpan / 2 + kPad;
  static constexpr int kQueryWords = kMostHeadDim / 2 + kPad;
  static constexpr int kPeaks = kBf16AttentionWarps * 4;

  struct Shared {
    const uint32_t* tiles[kSpanTiles];  // of K; null: not seen
    Array<int32_t, kQueries> begin;     // what a query sees of the span
    Array<int32_t, kQueries> end;
    Array<float, kQueries> slopes;                           // linear biases of the queries' heads
    Array<Array<float, kPeaks + 1>, kQueries> peaks;         // of each lane's scores
    Array<Array<float, kSlotsPerTile + 1>, kQueries> lanes;  // sums of weights
    Array<float, kQueries> peak;                             // of this span
    Array<float, kQueries> sum;
    Array<Array<uint32_t, kWeightWords>, kQueries> weights;  // pairs of positions
    Array<Array<uint32_t, kQueryWords>, kQueries> queries;   // pairs of dimensions
  };

  template <typename Warp>
  struct Scores {
    Array<typename Warp::template PerLane<HalfMatrixD>[2][2], kMatrices> of;  // [tile][position odd]
  };
  template <typename Warp>
  struct Values {
    Array<Array<typename Warp::template PerLane<HalfMatrixD>, kDimGroups>, kMatrices> of;
  };

  // Queries [first, first + kQueries) of a group: head by head, each with the group's rows.
  struct Work {
    RowGroup rows;
    int64_t kv_head;
    int first;

    LLMI_HD int64_t Row(int query) const { return rows.row_begin + (first + query) % rows.num_rows; }
    LLMI_HD int64_t Head(int query, int64_t group_heads) const { return kv_head * group_heads + (first + query) / rows.num_rows; }
  };

  AttentionPlan plan;

  LLMI_HD int64_t GroupHeads() const { return plan.args.num_heads / plan.args.kv.num_kv_heads; }
  LLMI_HD int NumQueries(const Work& work) const {
    const int left = work.rows.num_rows * static_cast<int>(GroupHeads()) - work.first;
    return left < kQueries ? left : kQueries;
  }
  LLMI_HD int64_t LastRow(const Work& work) const { return work.rows.row_begin + work.rows.num_rows - 1; }
  LLMI_HD const AttentionSegment& Segment(const Work& work) const { return plan.args.segments[plan.row_segments[work.rows.row_begin]]; }
  LLMI_HD static Shared& SharedOf(uint8_t* shared) { return *reinterpret_cast<Shared*>(shared); }

  template <typename Block>
  LLMI_HD void LoadQueries(const Block& block, const Work& work) const {
    block.ForEachThread([&](int thread) {
      Shared& shared = SharedOf(block.shared);
      const int num_words = plan.args.kv.head_dim / 2;
      for (int i = thread; i < kQueries * num_words; i += block.num_threads) {
        const int query = i / num_words;
        const int word = i % num_words;
        uint32_t pair = 0;
        if (query < NumQueries(work)) {
          const float* q = plan.args.q + work.Row(query) * plan.args.q_stride + work.Head(query, GroupHeads()) * plan.args.kv.head_dim;
          pair = FloatToBfloat16(q[2 * word]) | (uint32_t{FloatToBfloat16(q[2 * word + 1])} << 16);
        }
        shared.queries[query][word] = pair;
      }
    });
  }

  // The queries' weights of a span, peaks and sums, and into `values`, which are zero, its weighted values.
  template <typename Block>
  LLMI_HD void AddSpan(const Block& block, const Work& work, int64_t span,
                       typename Block::template PerWarp<Values<typename Block::Warp>>* values) const {
    using Warp = typename Block::Warp;
    Shared& shared = SharedOf(block.shared);
    const Sight sight = Sight::Of(plan, work.rows, span);
    block.ForEachThread([&](int thread) { FindWhatIsSeen(work, span, thread, block.num_threads, &shared); });
    typename Block::template PerWarp<Scores<Warp>> scores;
    block.ForEachWarp([&](const Warp& warp) {
      Score(warp, work, sight, shared, &scores[warp]);
      FindPeaks(warp, span, scores[warp], sight, &shared);
    });
    block.Barrier();
    block.ForEachThread([&](int thread) {
      for (int query = thread; query < kQueries; query += block.num_threads) {
        float peak = reference::kMinusInfinity;
        for (int i = 0; i < kPeaks; ++i) peak = reference::Max(peak, shared.peaks[query][i]);
        shared.peak[query] = peak;
      }
    });
    block.ForEachWarp([&](const Warp& warp) { StoreWeights(warp, scores[warp], sight, &shared); });
    block.Barrier();
    block.ForEachWarp([&](const Warp& warp) { AddValues(warp, work, sight, shared, &(*values)[warp]); });
    block.ForEachThread([&](int thread) {  // a lane of 16 positions each
      for (int i = thread; i < kQueries * kSlotsPerTile; i += block.num_threads) {
        const int query = i / kTileSlots;
        const int lane = i % kTileSlots;
        float sum = 0.0f;
        for (int tile = sight.FirstTile(); tile < sight.EndTile(); ++tile) sum = sum + Weight(shared, query, tile * kTileSlots + lane);
        shared.lanes[query][lane] = sum;
      }
    });
    block.ForEachThread([&](int thread) {
      for (int query = thread; query < kQueries; query += block.num_threads) shared.sum[query] = reference::FoldSum(shared.lanes[query]);
    });
  }

  // f(query, dimension, value) for each value that a lane holds.
  template <typename Warp, typename Visit>
  LLMI_HD void ForEachValue(const Warp& warp, int lane, const Values<Warp>& values, int num_queries, const Visit& f) const {
    LLMI_UNROLL
    for (int matrix = 0; matrix < kMatrices; ++matrix) {
      LLMI_UNROLL
      for (int group = 0; group < kDimGroups; ++group) {
        if (!HasDims(warp, group)) break;
        for (int i = 0; i < 4; ++i) {
          const int query = matrix * kMatrixQueries + MatrixRow(lane, i);
          if (query < num_queries) f(query, DimBegin(warp, group) + MatrixColumn(lane, i), values.of[matrix][group][lane].values[i]);
        }
      }
    }
  }

 private:
  LLMI_HD void FindWhatIsSeen(const Work& work, int64_t span, int thread, int num_threads, Shared* shared) const {
    for (int query = thread; query < kQueries; query += num_threads) {
      const int64_t row = work.Row(query);
      const bool used = query < NumQueries(work);
      shared->begin[query] = used ? Sight::Clip(AttentionFirstVisible(plan.args, row), span) : 0;
      shared->end[query] = used ? Sight::Clip(plan.args.positions[row] + 1, span) : 0;
      if constexpr (kBiased) shared->slopes[query] = used ? plan.args.linear_biases[work.Head(query, GroupHeads())] : 0.0f;
    }
    const AttentionSegment& segment = Segment(work);
    const Sight sight = Sight::Of(plan, work.rows, span);
    for (int tile = thread; tile < kSpanTiles; tile += num_threads) {
      const bool seen = tile >= sight.FirstTile() && tile < sight.EndTile();
      shared->tiles[tile] = seen ? KeyTile(segment.block_table, work.kv_head, span * kAttentionSpan + tile * kTileSlots) : nullptr;
    }
  }
  LLMI_HD static bool Sees(const Shared& shared, int query, int position) {
    return position >= shared.begin[query] && position < shared.end[query];
  }

  LLMI_HD const uint32_t* KeyTile(const int32_t* block_table, int64_t kv_head, int64_t slot) const {
    return reinterpret_cast<const uint32_t*>(KvTile(plan.args.kv, block_table, kv_head, slot));
  }
  LLMI_HD int ValueWords() const { return static_cast<int>(KvValueOffset(plan.args.kv) / 4); }  // behind K's

  // A lane's part of 16 dimensions from 2 x pair on, of the tile's positions 2 x (lane / 4) and the next, which two calls take.
  struct Keys {
    HalfMatrixB of[2];
  };
  LLMI_HD static Keys LoadKeys(int tile, int pair, const Shared& shared, int lane) {
    Keys keys = {};
    for (int i = 0; i < 2; ++i) {
      const int row = (pair + lane % 4 + 4 * i) * kTileSlots;
      const uint64_t two = *reinterpret_cast<const uint64_t*>(shared.tiles[tile] + row + lane / 4 * 2);
      keys.of[0].words[i] = static_cast<uint32_t>(two);
      keys.of[1].words[i] = static_cast<uint32_t>(two >> 32);
    }
    return keys;
  }

  template <typename Warp>
  LLMI_HD void Score(const Warp& warp, const Work& work, const Sight& sight, const Shared& shared, Scores<Warp>* scores) const {
    constexpr int kSteps = 2;  // of 16 dimensions, whose keys are read before one is used
    const int num_pairs = plan.args.kv.head_dim / 2;
    LLMI_ROLL
    for (int begin = 0; begin < num_pairs; begin += kSteps * 8) {
      Array<typename Warp::template PerLane<Keys>[2], kSteps> keys;
      LLMI_UNROLL
      for (int step = 0; step < kSteps; ++step) {
        if (begin + step * 8 >= num_pairs) break;
        LLMI_UNROLL
        for (int t = 0; t < 2; ++t) {
          const int tile = warp.index * 2 + t;
          if (tile < sight.FirstTile() || tile >= sight.EndTile()) continue;
          warp.ForEachLane([&](int lane) { keys[step][t][lane] = LoadKeys(tile, begin + step * 8, shared, lane); });
        }
      }
      LLMI_UNROLL
      for (int step = 0; step < kSteps; ++step) {
        if (begin + step * 8 >= num_pairs) break;
        LLMI_UNROLL
        for (int matrix = 0; matrix < kMatrices; ++matrix) {
          if (matrix * kMatrixQueries >= NumQueries(work)) break;
          typename Warp::template PerLane<HalfMatrixA> queries;
          warp.ForEachLane(
              [&](int lane) { queries[lane] = LoadHalfA(shared.queries[matrix * kMatrixQueries], kQueryWords, begin + step * 8, lane); });
          LLMI_UNROLL
          for (int t = 0; t < 2; ++t) {
            LLMI_UNROLL
            for (int odd = 0; odd < 2; ++odd) {
              typename Warp::template PerLane<HalfMatrixB> b;
              warp.ForEachLane([&](int lane) { b[lane] = keys[step][t][lane].of[odd]; });
              warp.MultiplyAdd(queries, b, scores->of[matrix][t][odd]);
            }
          }
        }
      }
    }
  }

  // f(matrix, t, i, pair): scores of[matrix][t][0 and 1] hold, as D's value i of the lane, those of positions 2 pair and 2 pair + 1.
  template <typename Warp, typename Visit>
  LLMI_HD static void ForEachPair(const Warp& warp, int lane, const Sight& sight, const Visit& f) {
    LLMI_UNROLL
    for (int matrix = 0; matrix < kMatrices; ++matrix) {
      LLMI_UNROLL
      for (int i = 0; i < 4; ++i) {
        LLMI_UNROLL
        for (int t = 0; t < 2; ++t) {
          const int tile = warp.index * 2 + t;
          if (tile >= sight.FirstTile() && tile < sight.EndTile()) f(matrix, t, i, tile * 8 + MatrixColumn(lane, i));
        }
      }
    }
  }

  // Finishes the scores (FinishedScore), and finds the greatest of each lane.
  template <typename Warp>
  LLMI_HD void FindPeaks(const Warp& warp, int64_t span, Scores<Warp>& scores, const Sight& sight, Shared* shared) const {
    warp.ForEachLane([&](int lane) {
      Array<float[2], kMatrices> peaks;  // of rows lane / 4 and lane / 4 + 8
      LLMI_UNROLL
      for (int matrix = 0; matrix < kMatrices; ++matrix) peaks[matrix][0] = peaks[matrix][1] = reference::kMinusInfinity;
      ForEachPair(warp, lane, sight, [&](int matrix, int t, int i, int pair) {
        LLMI_UNROLL
        for (int odd = 0; odd < 2; ++odd) {
          float& score = scores.of[matrix][t][odd][lane].values[i];
          const int query = matrix * kMatrixQueries + MatrixRow(lane, i);
          score = CappedScore(plan.args, score);
          if constexpr (kBiased) score = BiasedScore(shared->slopes[query], span * kAttentionSpan + 2 * pair + odd, score);
          float& peak = peaks[matrix][i / 2];
          if (Sees(*shared, query, 2 * pair + odd)) peak = reference::Max(peak, score);
        }
      });
      LLMI_UNROLL
      for (int matrix = 0; matrix < kMatrices; ++matrix) {
        for (int half = 0; half < 2; ++half) {
          shared->peaks[matrix * kMatrixQueries + lane / 4 + 8 * half][warp.index * 4 + lane % 4] = peaks[matrix][half];
        }
      }
    });
  }

  template <typename Warp>
  LLMI_HD void StoreWeights(const Warp& warp, const Scores<Warp>& scores, const Sight& sight, Shared* shared) const {
    warp.ForEachLane([&](int lane) {
      ForEachPair(warp, lane, sight, [&](int matrix, int t, int i, int pair) {
        const int query = matrix * kMatrixQueries + MatrixRow(lane, i);
        uint32_t word = 0;
        LLMI_UNROLL
        for (int odd = 0; odd < 2; ++odd) {
          if (!Sees(*shared, query, 2 * pair + odd)) continue;
          const float weight = ExpF32(scores.of[matrix][t][odd][lane].values[i] - shared->peak[query]);
          word |= uint32_t{FloatToBfloat16(weight)} << (16 * odd);
        }
        shared->weights[query][pair] = word;
      });
    });
  }
  LLMI_HD static float Weight(const Shared& shared, int query, int position) {
    return Bfloat16ToFloat(static_cast<uint16_t>(shared.weights[query][position / 2] >> (16 * (position % 2))));
  }

  template <typename Warp>
  LLMI_HD int DimBegin(const Warp& warp, int group) const {
    const int num_groups = plan.args.kv.head_dim / 8;
    const int groups_each = (num_groups + kBf16AttentionWarps - 1) / kBf16AttentionWarps;
    return (warp.index * groups_each + group) * 8;
  }
  template <typename Warp>
  LLMI_HD bool HasDims(const Warp& warp, int group) const {
    const int begin = DimBegin(warp, group);
    return begin < plan.args.kv.head_dim && begin < DimBegin(Warp{warp.index + 1}, 0);
  }

  // A lane's part of dimension d of 16 positions.
  LLMI_HD HalfMatrixB LoadValues(int tile, int d, const Shared& shared, int lane) const {
    const int head_dim = plan.args.kv.head_dim;
    const uint32_t* words = shared.tiles[tile] + ValueWords() + lane % 4 * head_dim + d;
    return {{words[0], words[4 * head_dim]}};
  }

  // Tiles in order. Tiles that all rows see whole are taken several at a time, and all are read before the first is used.
  template <typename Warp>
  LLMI_HD void AddValues(const Warp& warp, const Work& work, const Sight& sight, const Shared& shared, Values<Warp>* values) const {
    constexpr int kTiles = kDimGroups < 8 ? 8 / kDimGroups : 1;
    LLMI_ROLL
    for (int tile = sight.FirstTile(); tile < sight.EndTile();) {
      if (!sight.AllSeeTile(tile)) {
        AddMixedTile(warp, work, tile++, sight, shared, values);
        continue;
      }
      Array<Array<typename Warp::template PerLane<HalfMatrixB>, kDimGroups>, kTiles> b;
      LLMI_UNROLL
      for (int t = 0; t < kTiles; ++t) {
        LLMI_UNROLL
        for (int group = 0; group < kDimGroups; ++group) {
          if (!sight.AllSeeTile(tile + t) || !HasDims(warp, group)) break;
          warp.ForEachLane([&](int lane) { b[t][group][lane] = LoadValues(tile + t, DimBegin(warp, group) + lane / 4, shared, lane); });
        }
      }
      LLMI_UNROLL
      for (int t = 0; t < kTiles; ++t) {
        if (!sight.AllSeeTile(tile)) break;
        LLMI_UNROLL
        for (int matrix = 0; matrix < kMatrices; ++matrix) {
          if (matrix * kMatrixQueries >= NumQueries(work)) break;
          const auto weights = LoadWeights(warp, matrix, tile, shared);
          LLMI_UNROLL
          for (int group = 0; group < kDimGroups; ++group) {
            if (HasDims(warp, group)) warp.MultiplyAdd(weights, b[t][group], values->of[matrix][group]);
          }
        }
        ++tile;
      }
    }
  }

  // A tile of which some rows do not see all. Positions that no row sees count as zero, whatever their memory holds.
  template <typename Warp>
  LLMI_HD void AddMixedTile(const Warp& warp, const Work& work, int tile, const Sight& sight, const Shared& shared,
                            Values<Warp>* values) const {
    LLMI_UNROLL
    for (int group = 0; group < kDimGroups; ++group) {
      if (!HasDims(warp, group)) break;
      typename Warp::template PerLane<HalfMatrixB> b;
      warp.ForEachLane([&](int lane) { b[lane] = LoadValues(tile, DimBegin(warp, group) + lane / 4, shared, lane); });
      LLMI_UNROLL
      for (int matrix = 0; matrix < kMatrices; ++matrix) {
        if (matrix * kMatrixQueries >= NumQueries(work)) break;
        const auto weights = LoadWeights(warp, matrix, tile, shared);
        AddTile(warp, sight, tile, weights, b, values->of[matrix][group],
                [&](int query, int position) { return Sees(shared, matrix * kMatrixQueries + query, position); });
      }
    }
  }

  template <typename Warp>
  LLMI_HD static typename Warp::template PerLane<HalfMatrixA> LoadWeights(const Warp& warp, int matrix, int tile, const Shared& shared) {
    typename Warp::template PerLane<HalfMatrixA> weights;
    warp.ForEachLane(
        [&](int lane) { weights[lane] = LoadHalfA(shared.weights[matrix * kMatrixQueries], kWeightWords, tile * (kTileSlots / 2), lane); });
    return weights;
  }
};

}  // namespace llmi::cuda

// paged_attention over a bf16 cache on tensor cores, for rows whose spans are split over blocks (bf16_attention_block.h has the order of
// calls; these are the same).
//
// A piece of work is one span of a group of rows, for all heads of a KV head, 16 queries at a time. A block takes pieces of work from the
// launch's list and reads their K and V as a stream of parts, as SpanKernel does: K by 32 dimensions of all 256 positions, then V by 64
// positions of up to 128 dimensions. Copies run two parts ahead. A warp has 32 positions of the scores and 16 of a part's dimensions of the
// values; the operands come from the slots without any conversion.
//
// The launch may begin with what the projections left and end with what the output projection reads (AttentionPlan).
#pragma once

#include <cstddef>

#include "core/scalar_math.h"
#include "kernels/cpu/reference/attention_path.h"
#include "kernels/cpu/reference/lanes.h"
#include "kernels/cuda/async_copy.h"
#include "kernels/cuda/bf16_matrices.h"
#include "kernels/cuda/bf16_span_parts.h"
#include "kernels/cuda/span_merge.h"
#include "kernels/ops/attention_score.h"

namespace llmi::cuda {

constexpr int kBf16SpanBlocks = 2;  // that a multiprocessor has room for

template <bool kBiased>
struct Bf16SpanKernel : Bf16SpanParts {
  static constexpr int kGroups = kValueDims / 8 / kBf16AttentionWarps;  // of 8 dimensions, of a warp
  static constexpr int kPad = 4;  // words, so that lanes that read at the same time use different banks
  static constexpr int kWeightWords = kAttentionSpan / 2 + kPad;
  static constexpr int kPeaks = kBf16AttentionWarps * 4;
  static constexpr int kMostRegisters = kBiased ? 160 : 128;  // with 128, two blocks fit a multiprocessor

  struct Seen {
    Array<int32_t, kQueries> begin, end;  // what a query sees of the span
  };
  struct alignas(16) Shared {
    alignas(16) Array<Array<uint8_t, kSlotBytes>, kSlots> slots;
    union {
      Array<Array<uint32_t, kWeightWords>, kQueries> weights;  // pairs of positions
      SpanMerge<kMostSpanHeads> merge;
    };
    Array<Array<float, kPeaks + 1>, kQueries> peaks;         // of each lane's scores
    Array<Array<float, kSlotsPerTile + 1>, kQueries> lanes;  // sums of weights
    Array<float, kQueries> peak;
    Array<const uint8_t*, kTiles> tiles[2];  // of K; null: not seen, or gathered
    Work works[2];                           // that which is summed, and that which is copied
    Seen seen[2];
    Array<float, kQueries> slopes;  // linear biases of the heads that are copied
    Array<float, kMostNewRows> key_inverses;
  };
  // Behind it, queries [kQueries][pairs of dimensions + kPad].
  static constexpr size_t SharedBytes(int64_t head_dim) {
    return sizeof(Shared) + static_cast<size_t>(kQueries * (head_dim / 2 + kPad)) * sizeof(uint32_t);
  }

  // A warp's scores [tile x 2 + position odd], then, in the same registers, its values [group of dimensions].
  template <typename Warp>
  struct Sums {
    typename Warp::template PerLane<HalfMatrixD> of[4];
  };
  static_assert(kGroups <= 4);

  template <typename Visit>
  void ForEachPointer(const Visit& visit) const {
    plan.ForEachPointer(visit);
  }

  template <typename Block>
  LLMI_HD void operator()(const Block& block) const {
    using Warp = typename Block::Warp;
    Shared& shared = *reinterpret_cast<Shared*>(block.shared);
    const int64_t all = plan.NumItems() * plan.args.kv.num_kv_heads;
    const int num_items = static_cast<int>(all <= block.x ? 0 : (all - block.x + num_blocks - 1) / num_blocks);
    AsyncCopies<Block> copies;
    Place next = {0, 0, 0, 0};  // of the copies
    int next_slot = 0;
    const auto copy_next = [&] {
      if (next.item < num_items) {
        if (next.part == 0) Enter(block, shared, next, shared.slots[next_slot]);
        const Work& work = shared.works[next.buffer];
        block.ForEachWarp([&](const Warp& warp) {
          warp.ForEachLane([&](int lane) {
            CopyPart(work, shared.tiles[next.buffer], next.part, warp.index * kWarpLanes + lane, &copies, shared.slots[next_slot]);
          });
        });
        next = After(next, work);
      }
      copies.Commit();
      next_slot = (next_slot + 1) % kSlots;
    };
    typename Block::template PerWarp<Sums<Warp>> sums;
    int slot = 0;
    int ahead = 0;
    LLMI_ROLL
    for (Place place = {0, 0, 0, 0}; place.item < num_items;) {
      const bool is_ahead = ahead == kSlots - 1;
      if (is_ahead) {
        copies.template Wait<kSlots - 2>();
        block.Barrier();  // the part is there, and no thread reads the slot of the one before
      }
      copy_next();
      if (!is_ahead) {
        ++ahead;
        continue;
      }
      const Work& work = shared.works[place.buffer];
      if (MakesSome(work, place.part)) {
        block.ForEachThread([&](int thread) { MakeSome(work, shared.key_inverses, place.part, thread, shared.slots[slot]); });
      }
      const Part part = PartOf(place.part);
      block.ForEachWarp([&](const Warp& warp) {
        if (part.is_key) {
          AddScores(warp, shared, work, part, shared.slots[slot], &sums[warp]);
        } else {
          AddValues(warp, shared, place, part, shared.slots[slot], &sums[warp]);
        }
      });
      if (place.part == NumKeyParts() - 1) Weigh(block, shared, place, &sums);
      if (place.part == NumParts() - 1) Finish(block, shared, place);
      slot = (slot + 1) % kSlots;
      place = After(place, work);
    }
  }

 private:
  // Part `part` of queries from `first` on of the block's item `item`; what it works with stands in buffer 0 or 1.
  struct Place {
    int item;
    int first;
    int part;
    int buffer;
  };
  LLMI_HD Place After(const Place& place, const Work& work) const {
    if (place.part + 1 < NumParts()) return {place.item, place.first, place.part + 1, place.buffer};
    const bool more = place.first + kQueries < work.num_queries;
    return {place.item + (more ? 0 : 1), more ? place.first + kQueries : 0, 0, 1 - place.buffer};
  }
  LLMI_HD static uint32_t* QueriesOf(Shared& shared) { return reinterpret_cast<uint32_t*>(&shared + 1); }
  LLMI_HD int QueryWords() const { return HeadDim() / 2 + kPad; }

  // Finds what the next piece of work sees, and its queries. room: a slot that is free.
  template <typename Block>
  LLMI_HD void Enter(const Block& block, Shared& shared, const Place& place, uint8_t* room) const {
    const Work& work = shared.works[place.buffer];
    block.ForEachThread([&](int thread) {
      if (thread == 0) shared.works[place.buffer] = WorkOf(block.x + place.item * num_blocks, place.first);
    });
    const bool is_normed = plan.makes_rows() && plan.rows.is_normed();
    auto* lanes = reinterpret_cast<float*>(room);
    auto* inverses = lanes + (kQueries + kMostNewRows) * 16;
    block.ForEachThread([&](int thread) {
      const int query = thread;
      if (query < kQueries) {
        const bool used = query < work.NumQueries();
        const int64_t row = work.Row(query);
        shared.seen[place.buffer].begin[query] = used ? Sight::Clip(AttentionFirstVisible(plan.args, row), work.span) : 0;
        shared.seen[place.buffer].end[query] = used ? Sight::Clip(plan.args.positions[row] + 1, work.span) : 0;
        if constexpr (kBiased) shared.slopes[query] = used ? plan.args.linear_biases[work.Head(query, GroupHeads())] : 0.0f;
      }
      const int tile = thread;
      if (tile < kTiles) {
        const bool is_whole = tile >= work.sight.FirstTile() && tile < work.sight.EndTile() && tile < work.gathered;
        shared.tiles[place.buffer][tile] = is_whole ? KeyTile(work, work.span * kAttentionSpan + tile * kTile) : nullptr;
      }
      if (!is_normed) return;
      for (int i = thread; i < (kQueries + work.NumMade()) * 16; i += kThreads) {
        const int head = i / 16;
        if (head >= kQueries) {
          lanes[i] = plan.rows.Key(MadeRow(work, work.FirstMade() + head - kQueries), work.kv_head, 0.0f).SquaresOf(i % 16);
        } else if (head < work.NumQueries()) {
          lanes[i] = plan.rows.Query(work.Row(head), work.Head(head, GroupHeads()), 0.0f).SquaresOf(i % 16);
        }
      }
    });
    if (is_normed) {
      block.ForEachThread([&](int thread) {
        if (thread < work.NumQueries()) inverses[thread] = ProjectedRows::Inverse(plan.rows.query_norm, lanes + thread * 16);
        if (thread >= work.NumMade()) return;
        shared.key_inverses[thread] = ProjectedRows::Inverse(plan.rows.key_norm, lanes + (kQueries + thread) * 16);
      });
    }
    block.ForEachThread([&](int thread) {
      const int num_words = HeadDim() / 2;
      for (int i = thread; i < kQueries * num_words; i += kThreads) {
        const int query = i / num_words;
        const int d = i % num_words * 2;
        uint32_t pair = 0;
        if (query < work.NumQueries()) {
          const int64_t row = work.Row(query);
          const int64_t head = work.Head(query, GroupHeads());
          float two[2];
          if (plan.makes_rows()) {
            const ProjectedHead projected = plan.rows.Query(row, head, is_normed ? inverses[query] : 0.0f);
            two[0] = projected.At(d);
            two[1] = projected.At(d + 1);
          } else {
            const float* q = plan.args.q + row * plan.args.q_stride + head * HeadDim() + d;
            two[0] = q[0];
            two[1] = q[1];
          }
          pair = BothInOne(two[0], two[1]);
        }
        QueriesOf(shared)[query * QueryWords() + i % num_words] = pair;
      }
    });
  }

  template <typename Warp>
  LLMI_HD void AddScores(const Warp& warp, Shared& shared, const Work& work, const Part& part, const uint8_t* slot,
                         Sums<Warp>* sums) const {
    if (part.dim_begin == 0) {
      warp.ForEachLane([&](int lane) {
        LLMI_UNROLL
        for (int i = 0; i < 4; ++i) sums->of[i][lane] = {};
      });
    }
    LLMI_ROLL
    for (int pair = 0; pair < part.num_dims / 2; pair += 8) {
      typename Warp::template PerLane<HalfMatrixA> queries;
      warp.ForEachLane([&](int lane) { queries[lane] = LoadHalfA(QueriesOf(shared), QueryWords(), part.dim_begin / 2 + pair, lane); });
      LLMI_UNROLL
      for (int t = 0; t < 2; ++t) {
        const int tile = warp.index * 2 + t;
        if (tile < work.sight.FirstTile() || tile >= work.sight.EndTile()) continue;
        typename Warp::template PerLane<HalfMatrixB> b[2];  // of positions 2 x (lane / 4) and the next
        warp.ForEachLane([&](int lane) {
          LLMI_UNROLL
          for (int i = 0; i < 2; ++i) {
            const auto two =
                *reinterpret_cast<const uint64_t*>(slot + tile * kKeyStride + (pair + lane % 4 + 4 * i) * kKeyRow + lane / 4 * 8);
            b[0][lane].words[i] = static_cast<uint32_t>(two);
            b[1][lane].words[i] = static_cast<uint32_t>(two >> 32);
          }
        });
        LLMI_UNROLL
        for (int odd = 0; odd < 2; ++odd) warp.MultiplyAdd(queries, b[odd], sums->of[t * 2 + odd]);
      }
    }
  }

  // f(t, i, pair): sums 2 t and 2 t + 1 hold, as D's value i of the lane, those of positions 2 pair and 2 pair + 1.
  template <typename Warp, typename Visit>
  LLMI_HD static void ForEachPair(const Warp& warp, int lane, const Sight& sight, const Visit& f) {
    LLMI_UNROLL
    for (int i = 0; i < 4; ++i) {
      LLMI_UNROLL
      for (int t = 0; t < 2; ++t) {
        const int tile = warp.index * 2 + t;
        if (tile >= sight.FirstTile() && tile < sight.EndTile()) f(t, i, tile * 8 + MatrixColumn(lane, i));
      }
    }
  }

  // The scores' last steps, their maxima, the weights, and the sums of these in lanes of 16 positions each.
  template <typename Block, typename AllSums>
  LLMI_HD void Weigh(const Block& block, Shared& shared, const Place& place, AllSums* all) const {
    using Warp = typename Block::Warp;
    const Work& work = shared.works[place.buffer];
    const Seen& seen = shared.seen[place.buffer];
    const auto sees = [&](int query, int position) { return position >= seen.begin[query] && position < seen.end[query]; };
    block.ForEachWarp([&](const Warp& warp) {
      warp.ForEachLane([&](int lane) {
        float peaks[2] = {reference::kMinusInfinity, reference::kMinusInfinity};  // of rows lane / 4 and lane / 4 + 8
        ForEachPair(warp, lane, work.sight, [&](int t, int i, int pair) {
          LLMI_UNROLL
          for (int odd = 0; odd < 2; ++odd) {
            float& score = (*all)[warp].of[t * 2 + odd][lane].values[i];
            const int query = MatrixRow(lane, i);
            score = CappedScore(plan.args, score);
            if constexpr (kBiased) score = BiasedScore(shared.slopes[query], work.span * kAttentionSpan + 2 * pair + odd, score);
            if (sees(query, 2 * pair + odd)) peaks[i / 2] = reference::Max(peaks[i / 2], score);
          }
        });
        for (int half = 0; half < 2; ++half) shared.peaks[lane / 4 + 8 * half][warp.index * 4 + lane % 4] = peaks[half];
      });
    });
    block.Barrier();
    block.ForEachThread([&](int query) {
      if (query >= kQueries) return;
      float peak = reference::kMinusInfinity;
      for (int i = 0; i < kPeaks; ++i) peak = reference::Max(peak, shared.peaks[query][i]);
      shared.peak[query] = peak;
    });
    block.ForEachWarp([&](const Warp& warp) {
      warp.ForEachLane([&](int lane) {
        ForEachPair(warp, lane, work.sight, [&](int t, int i, int pair) {
          const int query = MatrixRow(lane, i);
          uint32_t word = 0;
          LLMI_UNROLL
          for (int odd = 0; odd < 2; ++odd) {
            if (!sees(query, 2 * pair + odd)) continue;
            const float weight = ExpF32((*all)[warp].of[t * 2 + odd][lane].values[i] - shared.peak[query]);
            word |= uint32_t{FloatToBfloat16(weight)} << (16 * odd);
          }
          shared.weights[query][pair] = word;
        });
      });
    });
    block.Barrier();
    block.ForEachThread([&](int thread) {
      const int query = thread / kTile;
      const int lane = thread % kTile;
      float sum = 0.0f;
      for (int tile = work.sight.FirstTile(); tile < work.sight.EndTile(); ++tile) {
        const uint32_t word = shared.weights[query][(tile * kTile + lane) / 2];
        sum = sum + Bfloat16ToFloat(static_cast<uint16_t>(word >> (16 * (lane % 2))));
      }
      shared.lanes[query][lane] = sum;
    });
  }

  // Tiles in order.
  template <typename Warp>
  LLMI_HD void AddValues(const Warp& warp, Shared& shared, const Place& place, const Part& part, const uint8_t* slot,
                         Sums<Warp>* sums) const {
    const Work& work = shared.works[place.buffer];
    const int dim_begin = warp.index * kGroups * 8;  // of the part's
    if (part.tile_begin == 0) {
      warp.ForEachLane([&](int lane) {
        LLMI_UNROLL
        for (int group = 0; group < kGroups; ++group) sums->of[group][lane] = {};
      });
    }
    const auto sees = [&](int query, int position) {
      const Seen& seen = shared.seen[place.buffer];
      return position >= seen.begin[query] && position < seen.end[query];
    };
    // add(weights, values of a group of dimensions, sums of the group)
    const auto for_each_group = [&](int t, const auto& add) {
      typename Warp::template PerLane<HalfMatrixA> weights;
      warp.ForEachLane(
          [&](int lane) { weights[lane] = LoadHalfA(shared.weights[0], kWeightWords, (part.tile_begin + t) * (kTile / 2), lane); });
      LLMI_UNROLL
      for (int group = 0; group < kGroups; ++group) {
        if (dim_begin + group * 8 >= part.num_dims) break;
        typename Warp::template PerLane<HalfMatrixB> b;
        warp.ForEachLane([&](int lane) {
          const uint8_t* words = slot + t * kValueStride + lane % 4 * kValueRow + (dim_begin + group * 8 + lane / 4) * 4;
          b[lane] = {{*reinterpret_cast<const uint32_t*>(words), *reinterpret_cast<const uint32_t*>(words + 4 * kValueRow)}};
        });
        add(weights, b, sums->of[group]);
      }
    };
    if (work.sight.AllSee(part.tile_begin * kTile) && work.sight.AllSee((part.tile_begin + kValueTiles) * kTile - 1)) {
      LLMI_UNROLL
      for (int t = 0; t < kValueTiles; ++t) {
        for_each_group(t, [&](const auto& weights, auto& b, auto& to) { warp.MultiplyAdd(weights, b, to); });
      }
    } else {
      LLMI_ROLL
      for (int t = 0; t < kValueTiles; ++t) {
        const int tile = part.tile_begin + t;
        if (tile < work.sight.FirstTile() || tile >= work.sight.EndTile()) continue;
        for_each_group(t, [&](const auto& weights, auto& b, auto& to) { AddTile(warp, work.sight, tile, weights, b, to, sees); });
      }
    }
    if (part.tile_begin + kValueTiles < kTiles) return;
    warp.ForEachLane([&](int lane) {
      LLMI_UNROLL
      for (int group = 0; group < kGroups; ++group) {
        if (dim_begin + group * 8 >= part.num_dims) break;
        LLMI_UNROLL
        for (int i = 0; i < 4; i += 2) {
          float* partial = Partial(work, shared.seen[place.buffer], MatrixRow(lane, i));
          if (partial == nullptr) continue;
          const float* values = sums->of[group][lane].values + i;
          float* to = partial + part.dim_begin + dim_begin + group * 8 + MatrixColumn(lane, i);
          to[0] = values[0];
          to[1] = values[1];
        }
      }
    });
  }
  // Null for a query that sees nothing of the span.
  LLMI_HD float* Partial(const Work& work, const Seen& seen, int query) const {
    if (query >= work.NumQueries() || seen.begin[query] >= seen.end[query]) return nullptr;
    return plan.Partial(work.Row(query), work.Head(query, GroupHeads()), work.span);
  }

  template <typename Block>
  LLMI_HD void Finish(const Block& block, Shared& shared, const Place& place) const {
    const Work& work = shared.works[place.buffer];
    block.ForEachThread([&](int query) {
      if (query >= kQueries) return;
      float* partial = Partial(work, shared.seen[place.buffer], query);
      if (partial == nullptr) return;
      partial[HeadDim()] = shared.peak[query];
      partial[HeadDim() + 1] = reference::FoldSum(shared.lanes[query]);
    });
    if (work.first + kQueries < work.num_queries) return;
    const int64_t head_begin = work.kv_head * GroupHeads();
    shared.merge.FinishSpan(block, plan, work.rows, head_begin, static_cast<int>(GroupHeads()),
                            plan.counts + work.group * plan.args.num_heads + head_begin);
  }
};

}  // namespace llmi::cuda

// paged_attention over an fp16 cache for groups of rows that a block takes whole, as prompts have (span_plan.h), in the CPU's order
// (kernels/ops/attention.h).
//
// A block has up to 32 queries, pairs of a row and a head of one KV head, and goes through their spans, left to right. K and V come as a
// stream of parts by asynchronous copies, one part ahead of the sums: K by 32 dimensions of all 256 positions, with those of q; then V by
// 64 positions of up to 128 dimensions. A thread has eight queries and four positions of the scores, then two dimensions of the values:
// sums that no other thread has a part in. Each span is merged into the totals at once, in registers, so there are no partials in memory.
#pragma once

#include <cstddef>

#include "core/scalar_math.h"
#include "kernels/cpu/reference/attention_path.h"
#include "kernels/cpu/reference/lanes.h"
#include "kernels/cuda/async_copy.h"
#include "kernels/cuda/attention_plan.h"
#include "kernels/cuda/kv_parts.h"
#include "kernels/cuda/kv_words.h"
#include "kernels/cuda/sight.h"
#include "kernels/cuda/warp.h"
#include "kernels/layout/kv_layout.h"
#include "kernels/ops/attention_score.h"

namespace llmi::cuda {

// Block x: a group, a KV head, and a chunk of their queries. kPasses: over V, of 128 dimensions each.
template <int kPasses>
struct PromptAttentionKernel {
  static constexpr int kThreads = 256;
  static constexpr int kMostRegisters = kPasses == 1 ? 128 : 160;  // with 128, two blocks fit a multiprocessor
  static constexpr int kQueries = 32;
  static constexpr int kOwnQueries = 8;                               // of a thread
  static constexpr int kColumns = kThreads * kOwnQueries / kQueries;  // threads with the same queries
  static constexpr int kTile = kSlotsPerTile;
  static constexpr int kTiles = kAttentionSpan / kSlotsPerTile;
  static constexpr int kKeyDims = 32;
  static constexpr int kKeyRow = kTile * 2;
  static constexpr int kKeyStride = kKeyDims * kKeyRow + kKeyRow;  // the last row is empty, so that tiles begin in different banks
  static constexpr int kValueDims = 2 * kColumns;
  static constexpr int kMostHeadDim = kPasses * kValueDims;
  static constexpr int kValueTiles = 4;
  static constexpr int kValueRow = kValueDims * 2;
  static_assert(kColumns * 4 == kAttentionSpan);

  struct Slot {
    alignas(16) uint8_t values[kTiles * kKeyStride];  // K, or V [position][dimension]
    Words<float, 4> queries[kQueries][kKeyDims / 4];
  };
  static_assert(kValueTiles * kTile * kValueRow <= kTiles * kKeyStride);
  // What a span holds for the queries.
  struct Span {
    const uint8_t* tiles[kTiles];  // of K; null: not seen
    int32_t begin[kQueries], end[kQueries];
    Sight sight;
  };
  struct Shared {
    Slot slots[2];
    Words<float, 4> weights[kQueries][kAttentionSpan / 4];
    float peaks[kQueries][16];
    float sums[kQueries][16];
    Span spans[2];  // that which is summed, and that which is copied
    float total_peak[kQueries], total_sum[kQueries];
    float keep[kQueries], add[kQueries];  // factors that merge a span to those before
  };
  static constexpr size_t kSharedBytes = sizeof(Shared);

  using Cut = KvParts<kKeyDims, kValueDims, kValueTiles>;

  AttentionPlan plan;
  const RowGroup* groups;
  int64_t num_groups;
  int64_t chunks;  // of a full group's queries

  template <typename Visit>
  void ForEachPointer(const Visit& visit) const {
    plan.ForEachPointer(visit);
    visit(groups);
  }

  template <typename Block>
  LLMI_HD void operator()(const Block& block) const {
    Shared& shared = *reinterpret_cast<Shared*>(block.shared);
    const int64_t num_kv_heads = plan.args.kv.num_kv_heads;
    // The last rows of a prompt see most positions, so their blocks begin first.
    const RowGroup rows = groups[num_groups - 1 - block.x / (chunks * num_kv_heads)];
    const Work work = {rows, static_cast<int>(block.x / chunks % num_kv_heads), static_cast<int>(block.x % chunks) * kQueries};
    if (NumQueries(work) <= 0) return;
    block.ForEachThread([&](int query) {
      if (query >= kQueries) return;
      shared.total_peak[query] = reference::kMinusInfinity;
      shared.total_sum[query] = 0.0f;
    });
    const int64_t first_span = plan.FirstSpan(rows.row_begin);
    const auto num_spans = static_cast<int>(plan.EndSpan(rows.row_begin + rows.num_rows - 1) - first_span);
    AsyncCopies<Block> copies;
    const auto copy = [&](int span, int part) {
      if (span < num_spans) {
        if (part == 0) Enter(block, work, first_span + span, &shared.spans[span % 2]);
        Slot& slot = shared.slots[(span * NumParts() + part) % 2];
        block.ForEachWarp([&](const auto& warp) {
          warp.ForEachLane([&](int lane) { CopyPart(work, shared.spans[span % 2], part, warp.index * kWarpLanes + lane, &copies, &slot); });
        });
      }
      copies.Commit();
    };
    typename Block::template PerWarp<typename Block::Warp::template PerLane<Sums>> sums;
    copy(0, 0);
    LLMI_ROLL
    for (int span = 0; span < num_spans; ++span) {
      LLMI_ROLL
      for (int part = 0; part < NumParts(); ++part) {
        copies.template Wait<0>();
        block.Barrier();  // the part is there, and no thread reads the slot of the one before
        copy(part + 1 < NumParts() ? span : span + 1, part + 1 < NumParts() ? part + 1 : 0);
        const Slot& slot = shared.slots[(span * NumParts() + part) % 2];
        block.ForEachWarp([&](const auto& warp) {
          warp.ForEachLane([&](int lane) {
            const int thread = warp.index * kWarpLanes + lane;
            if (part < NumKeyParts()) {
              AddScores(part, thread, slot, &shared, &sums[warp][lane]);
            } else {
              AddValues(shared, shared.spans[span % 2], span == 0, part - NumKeyParts(), thread, slot, &sums[warp][lane]);
            }
          });
        });
        if (part == NumKeyParts() - 1) Weigh(block, work, first_span + span, shared.spans[span % 2], &shared);
      }
    }
    block.Barrier();  // the last span is merged
    block.ForEachThread([&](int query) {
      if (query >= NumQueries(work)) return;
      const float* sink = AttentionSink(plan.args, work.Head(query, GroupHeads()));
      shared.keep[query] = reference::MergeSink(sink, shared.total_peak[query], &shared.total_sum[query]);
    });
    block.ForEachWarp([&](const auto& warp) {
      warp.ForEachLane([&](int lane) { Store(work, shared, warp.index * kWarpLanes + lane, sums[warp][lane]); });
    });
  }

 private:
  // Queries from `first` on of a group: head by head, each with the group's rows.
  struct Work {
    RowGroup rows;
    int kv_head;
    int first;

    LLMI_HD int64_t Row(int query) const { return rows.row_begin + (first + query) % rows.num_rows; }
    LLMI_HD int64_t Head(int query, int64_t group_heads) const { return kv_head * group_heads + (first + query) / rows.num_rows; }
  };
  // A thread's: scores of the span, or values of a pass; and the merged values of all passes.
  struct Sums {
    float of[kOwnQueries][4];
    float totals[kPasses][kOwnQueries][2];
  };

  LLMI_HD int HeadDim() const { return plan.args.kv.head_dim; }
  LLMI_HD int64_t GroupHeads() const { return plan.args.num_heads / plan.args.kv.num_kv_heads; }
  LLMI_HD int NumQueries(const Work& work) const {
    const int left = work.rows.num_rows * static_cast<int>(GroupHeads()) - work.first;
    return left < kQueries ? left : kQueries;
  }
  LLMI_HD int NumKeyParts() const { return Cut{HeadDim()}.NumKeyParts(); }
  LLMI_HD int NumParts() const { return Cut{HeadDim()}.NumParts(); }

  template <typename Block>
  LLMI_HD void Enter(const Block& block, const Work& work, int64_t span, Span* to) const {
    block.ForEachThread([&](int thread) {
      const Sight sight = Sight::Of(plan, work.rows, span);
      if (thread == 0) to->sight = sight;
      if (thread < kQueries) {
        const bool used = thread < NumQueries(work);
        to->begin[thread] = used ? Sight::Clip(AttentionFirstVisible(plan.args, work.Row(thread)), span) : 0;
        to->end[thread] = used ? Sight::Clip(plan.args.positions[work.Row(thread)] + 1, span) : 0;
      }
      if (thread >= kTiles) return;
      const AttentionSegment& segment = plan.args.segments[plan.row_segments[work.rows.row_begin]];
      const bool seen = thread >= sight.FirstTile() && thread < sight.EndTile();
      to->tiles[thread] = seen ? KvTile(plan.args.kv, segment.block_table, work.kv_head, span * kAttentionSpan + thread * kTile) : nullptr;
    });
  }

  template <typename Copies>
  LLMI_HD void CopyPart(const Work& work, const Span& span, int part, int own_thread, Copies* copies, Slot* slot) const {
    const auto thread = static_cast<int>(ComputedHere(static_cast<unsigned>(own_thread)));  // else addresses stay in registers
    const auto [is_key, dim_begin, num_dims, tile_begin] = Cut{HeadDim()}.PartOf(part);
    if (is_key) {
      constexpr int kUnits = kKeyDims * kKeyRow / 16;  // of a tile
      LLMI_ROLL
      for (int i = thread; i < kTiles * kUnits; i += kThreads) {
        const int tile = i / kUnits;
        const int at = i % kUnits * 16;
        copies->Copy(slot->values + tile * kKeyStride + at, span.tiles[tile] + dim_begin * kKeyRow + at,
                     span.tiles[tile] != nullptr && at < num_dims * kKeyRow);
      }
      static_assert(kQueries * kKeyDims / 4 == kThreads);
      const int query = thread / (kKeyDims / 4);
      const int d = thread % (kKeyDims / 4) * 4;
      const bool wanted = query < NumQueries(work) && d < num_dims;
      const float* q = plan.args.q + work.Row(query) * plan.args.q_stride + work.Head(query, GroupHeads()) * HeadDim() + dim_begin + d;
      copies->Copy(&slot->queries[query][d / 4], q, wanted);
      return;
    }
    constexpr int kUnits = kValueRow / 16;  // of a position
    LLMI_ROLL
    for (int i = thread; i < kValueTiles * kTile * kUnits; i += kThreads) {
      const uint8_t* tile = span.tiles[tile_begin + i / (kTile * kUnits)];
      const int64_t from = KvValueOffset(plan.args.kv) + (i / kUnits % kTile * HeadDim() + dim_begin) * 2 + i % kUnits * 16;
      copies->Copy(slot->values + i / kUnits * kValueRow + i % kUnits * 16, tile + from, tile != nullptr && i % kUnits * 8 < num_dims);
    }
  }

  LLMI_HD void AddScores(int part, int thread, const Slot& slot, Shared* shared, Sums* sums) const {
    const int column = thread % kColumns;
    const int first = thread / kColumns * kOwnQueries;
    if (part == 0) {
      LLMI_UNROLL
      for (int i = 0; i < kOwnQueries * 4; ++i) sums->of[i / 4][i % 4] = 0.0f;
    }
    const uint8_t* keys = slot.values + column / 4 * kKeyStride + column % 4 * 8;
    const int num_dims = Cut{HeadDim()}.PartOf(part).num_dims;
    LLMI_ROLL
    for (int d = 0; d < num_dims; d += 4) {
      float k[4][4];
      LLMI_UNROLL
      for (int i = 0; i < 4; ++i) WidenElements<KvType::kF16, 4>(keys + (d + i) * kKeyRow, k[i]);
      LLMI_UNROLL
      for (int query = 0; query < kOwnQueries; ++query) {
        const Words<float, 4> q = slot.queries[first + query][d / 4];
        LLMI_UNROLL
        for (int i = 0; i < 4; ++i) {
          LLMI_UNROLL
          for (int p = 0; p < 4; ++p) sums->of[query][p] = Fma(k[i][p], q.of[i], sums->of[query][p]);
        }
      }
    }
    if (part < NumKeyParts() - 1) return;
    LLMI_UNROLL
    for (int query = 0; query < kOwnQueries; ++query) {
      const float* of = sums->of[query];
      shared->weights[first + query][column] = {{of[0], of[1], of[2], of[3]}};
    }
  }

  // The scores' last steps, their maxima, exponentials, and the sums of these, in lanes of 16 positions; then what merges the span.
  template <typename Block>
  LLMI_HD void Weigh(const Block& block, const Work& work, int64_t number, const Span& span, Shared* shared) const {
    block.Barrier();
    // body(query, lane, the lane's first position that the query sees)
    const auto for_each_lane = [&](int thread, const auto& body) {
      for (int i = thread; i < NumQueries(work) * 16; i += kThreads) {
        const int begin = span.begin[i / 16];
        body(i / 16, i % 16, begin + (i % 16 - begin % 16 + 16) % 16);
      }
    };
    const auto weight = [&](int query, int position) -> float& { return shared->weights[query][position / 4].of[position % 4]; };
    block.ForEachThread([&](int thread) {
      for_each_lane(thread, [&](int query, int lane, int first) {
        float peak = reference::kMinusInfinity;
        LLMI_ROLL
        for (int j = first; j < span.end[query]; j += 16) {
          float& score = weight(query, j);
          score = FinishedScore(plan.args, work.Head(query, GroupHeads()), number * kAttentionSpan + j, score);
          peak = reference::Max(peak, score);
        }
        shared->peaks[query][lane] = peak;
      });
    });
    block.ForEachThread([&](int thread) {
      for_each_lane(thread, [&](int query, int lane, int first) {
        const float peak = Peak(shared->peaks[query]);
        float sum = 0.0f;
        LLMI_ROLL
        for (int j = first; j < span.end[query]; j += 16) {
          weight(query, j) = ExpF32(weight(query, j) - peak);
          sum = sum + weight(query, j);
        }
        shared->sums[query][lane] = sum;
      });
    });
    block.ForEachThread([&](int query) {
      if (query >= NumQueries(work) || span.begin[query] >= span.end[query]) return;
      const reference::SpanMerge merge = reference::MergePeaks(shared->total_peak[query], Peak(shared->peaks[query]));
      shared->total_sum[query] = Fma(reference::FoldSum(shared->sums[query]), merge.add, shared->total_sum[query] * merge.keep);
      shared->total_peak[query] = merge.peak;
      shared->keep[query] = merge.keep;
      shared->add[query] = merge.add;
    });
  }
  LLMI_HD static float Peak(const float* lanes) {
    float peak = lanes[0];
    for (int i = 1; i < 16; ++i) peak = reference::Max(peak, lanes[i]);
    return peak;
  }

  // number: of the parts of V.
  LLMI_HD void AddValues(const Shared& shared, const Span& span, bool is_first, int number, int thread, const Slot& slot,
                         Sums* sums) const {
    const int pass = number / (kTiles / kValueTiles);
    const int tile_begin = number % (kTiles / kValueTiles) * kValueTiles;
    const int first = thread / kColumns * kOwnQueries;
    const int d = thread % kColumns * 2;
    if (pass * kValueDims + d >= HeadDim()) return;
    if (tile_begin == 0) {
      LLMI_UNROLL
      for (int query = 0; query < kOwnQueries; ++query) sums->of[query][0] = sums->of[query][1] = 0.0f;
    }
    const uint8_t* values = slot.values + d * 2;
    LLMI_ROLL
    for (int begin = 0; begin < kValueTiles * kTile; begin += 4) {
      const int position = tile_begin * kTile + begin;
      if (span.sight.AllSee(position) && span.sight.AllSee(position + 3)) {
        float v[4][2];
        LLMI_UNROLL
        for (int i = 0; i < 4; ++i) WidenElements<KvType::kF16, 2>(values + (begin + i) * kValueRow, v[i]);
        LLMI_UNROLL
        for (int query = 0; query < kOwnQueries; ++query) {
          const Words<float, 4> weights = shared.weights[first + query][position / 4];
          LLMI_UNROLL
          for (int i = 0; i < 4; ++i) {
            sums->of[query][0] = Fma(weights.of[i], v[i][0], sums->of[query][0]);
            sums->of[query][1] = Fma(weights.of[i], v[i][1], sums->of[query][1]);
          }
        }
        continue;
      }
      if (position + 3 < span.sight.begin || position >= span.sight.end) continue;
      LLMI_ROLL
      for (int i = 0; i < 4; ++i) {
        float v[2];
        WidenElements<KvType::kF16, 2>(values + (begin + i) * kValueRow, v);
        LLMI_UNROLL
        for (int query = 0; query < kOwnQueries; ++query) {
          if (position + i < span.begin[first + query] || position + i >= span.end[first + query]) continue;
          const float weight = shared.weights[first + query][position / 4].of[i];
          sums->of[query][0] = Fma(weight, v[0], sums->of[query][0]);
          sums->of[query][1] = Fma(weight, v[1], sums->of[query][1]);
        }
      }
    }
    if (tile_begin + kValueTiles < kTiles) return;
    LLMI_UNROLL
    for (int p = 0; p < kPasses; ++p) {
      if (p != pass) continue;
      LLMI_UNROLL
      for (int query = 0; query < kOwnQueries; ++query) {
        float* totals = sums->totals[p][query];
        if (is_first) totals[0] = totals[1] = 0.0f;
        if (span.begin[first + query] >= span.end[first + query]) continue;  // nothing seen
        const float keep = shared.keep[first + query];
        const float add = shared.add[first + query];
        LLMI_UNROLL
        for (int i = 0; i < 2; ++i) totals[i] = Fma(sums->of[query][i], add, totals[i] * keep);
      }
    }
  }

  LLMI_HD void Store(const Work& work, const Shared& shared, int thread, const Sums& sums) const {
    const int first = thread / kColumns * kOwnQueries;
    LLMI_UNROLL
    for (int query = 0; query < kOwnQueries; ++query) {
      if (first + query >= NumQueries(work)) break;
      const float inverse = 1.0f / shared.total_sum[first + query];
      const float keep = shared.keep[first + query];
      float* out = plan.args.out + work.Row(first + query) * plan.args.out_stride + work.Head(first + query, GroupHeads()) * HeadDim();
      LLMI_UNROLL
      for (int pass = 0; pass < kPasses; ++pass) {
        const int d = pass * kValueDims + thread % kColumns * 2;
        if (d >= HeadDim()) break;
        const float* of = sums.totals[pass][query];
        *reinterpret_cast<Words<float, 2>*>(out + d) = {{(of[0] * keep) * inverse, (of[1] * keep) * inverse}};
      }
    }
  }
};

}  // namespace llmi::cuda

// paged_attention over a bf16 cache on tensor cores, for many rows (bf16_attention_block.h); bf16_span_kernel.h has few.
#pragma once

#include <cstddef>

#include "kernels/cuda/bf16_attention_block.h"

namespace llmi::cuda {

// Groups that are taken whole: a block computes all spans of up to 32 queries and merges each at once. Block x: a group, a KV head, and a
// chunk of their queries.
template <int kDimGroups, bool kBiased>
struct Bf16AttentionKernel {
  using Attention = Bf16Attention<2, kDimGroups, kBiased>;
  static constexpr int kQueries = Attention::kQueries;
  static constexpr int kMostHeadDim = Attention::kMostHeadDim;
  static constexpr int kMostRegisters = Attention::kMostRegisters;
  struct Shared : Attention::Shared {
    Array<Array<float, kMostHeadDim + Attention::kPad>, kQueries> totals;
    Array<float, kQueries> total_peak;
    Array<float, kQueries> total_sum;
    Array<float, kQueries> keep;  // factors that merge a span to those before
    Array<float, kQueries> add;
  };
  static constexpr size_t kSharedBytes = sizeof(Shared);
  Attention attention;
  const RowGroup* groups;
  int64_t num_groups;
  int64_t chunks;  // of a full group's queries

  template <typename Visit>
  void ForEachPointer(const Visit& visit) const {
    attention.plan.ForEachPointer(visit);
    visit(groups);
  }

  template <typename Block>
  LLMI_HD void operator()(const Block& block) const {
    using Warp = typename Block::Warp;
    const AttentionPlan& plan = attention.plan;
    const int64_t num_kv_heads = plan.args.kv.num_kv_heads;
    // The last rows of a prompt see most positions, so their blocks begin first.
    const int64_t group = num_groups - 1 - block.x / (chunks * num_kv_heads);
    const typename Attention::Work work = {groups[group], block.x / chunks % num_kv_heads, static_cast<int>(block.x % chunks) * kQueries};
    if (attention.NumQueries(work) <= 0) return;
    attention.LoadQueries(block, work);
    Shared& shared = *reinterpret_cast<Shared*>(block.shared);
    block.ForEachThread([&](int thread) {
      for (int query = thread; query < kQueries; query += block.num_threads) {
        shared.total_peak[query] = reference::kMinusInfinity;
        shared.total_sum[query] = 0.0f;
        for (int d = 0; d < plan.args.kv.head_dim; ++d) shared.totals[query][d] = 0.0f;
      }
    });
    for (int64_t span = plan.FirstSpan(work.rows.row_begin); span < plan.EndSpan(attention.LastRow(work)); ++span) {
      typename Block::template PerWarp<typename Attention::template Values<Warp>> values;
      attention.AddSpan(block, work, span, &values);
      block.ForEachThread([&](int thread) {
        for (int query = thread; query < kQueries; query += block.num_threads) MergeSums(query, &shared);
      });
      block.ForEachWarp([&](const Warp& warp) {
        warp.ForEachLane([&](int lane) {
          attention.ForEachValue(warp, lane, values[warp], attention.NumQueries(work), [&](int query, int64_t d, float value) {
            float& total = shared.totals[query][d];
            total = Fma(value, shared.add[query], total * shared.keep[query]);
          });
        });
      });
      block.Barrier();
    }
    block.ForEachThread([&](int thread) {
      for (int query = thread; query < attention.NumQueries(work); query += block.num_threads) {
        const float* sink = AttentionSink(plan.args, work.Head(query, attention.GroupHeads()));
        shared.keep[query] = reference::MergeSink(sink, shared.total_peak[query], &shared.total_sum[query]);
      }
    });
    block.ForEachThread([&](int thread) {
      const int head_dim = plan.args.kv.head_dim;
      for (int i = thread; i < attention.NumQueries(work) * head_dim; i += block.num_threads) {
        const int query = i / head_dim;
        const int64_t head = work.Head(query, attention.GroupHeads());
        const float inverse = 1.0f / shared.total_sum[query];
        plan.args.out[work.Row(query) * plan.args.out_stride + head * head_dim + i % head_dim] =
            (shared.totals[query][i % head_dim] * shared.keep[query]) * inverse;
      }
    });
  }

 private:
  // As reference::MergeSpans does.
  LLMI_HD static void MergeSums(int query, Shared* shared) {
    shared->keep[query] = 1.0f;
    shared->add[query] = 0.0f;
    if (shared->begin[query] >= shared->end[query]) return;  // nothing seen
    const reference::SpanMerge merge = reference::MergePeaks(shared->total_peak[query], shared->peak[query]);
    shared->total_sum[query] = Fma(shared->sum[query], merge.add, shared->total_sum[query] * merge.keep);
    shared->total_peak[query] = merge.peak;
    shared->keep[query] = merge.keep;
    shared->add[query] = merge.add;
  }
};

}  // namespace llmi::cuda

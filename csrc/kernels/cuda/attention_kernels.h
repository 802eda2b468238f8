// kv_write and paged_attention. segments, their tables and parents, positions and row_segments are on the device; a row of segment -1
// pads a launch.
#pragma once

#include <cstddef>

#include "core/scalar_math.h"
#include "kernels/cpu/reference/attention_path.h"
#include "kernels/cpu/reference/kv_store.h"
#include "kernels/cpu/reference/lanes.h"
#include "kernels/cuda/block.h"
#include "kernels/cuda/span_plan.h"
#include "kernels/layout/kv_elements.h"
#include "kernels/layout/kv_slot.h"
#include "kernels/ops/attention.h"
#include "kernels/ops/attention_score.h"

namespace llmi::cuda {

constexpr int kAttentionThreads = 128;
constexpr int kSpanHeads = 8;  // query heads of one KV head that share each K and V load

// Block x: a row; y: a KV head.
struct KvWriteKernel {
  KvWriteArgs args;
  const int32_t* row_segments;

  template <typename Visit>
  void ForEachPointer(const Visit& visit) const {
    visit(args.kv.base);
    visit(args.segments);
    visit(args.k);
    visit(args.v);
    visit(row_segments);
  }

  template <typename Block>
  LLMI_HD void operator()(const Block& block) const {
    if (row_segments[block.x] < 0) return;
    block.ForEachThread([&](int thread) {
      const KvView& kv = args.kv;
      const AttentionSegment& segment = args.segments[row_segments[block.x]];
      const int64_t slot = segment.base_len + block.x - segment.row_begin;
      uint8_t* k_tile = KvTile(kv, segment.block_table, block.y, slot);
      const int64_t offset = block.x * args.stride + block.y * kv.head_dim;
      for (int64_t part = thread; part < kv.head_dim / kKvScaleBlock; part += block.num_threads) {
        reference::StoreKeys(kv, args.k + offset, part, slot % kSlotsPerTile, k_tile);
        reference::StoreValues(kv, args.v + offset, part, slot % kSlotsPerTile, k_tile + KvValueOffset(kv));
      }
    });
  }
};

// Copies one slot's K and V of one layer to another slot of the same sequence. Block x: a KV head.
struct KvCopySlotKernel {
  KvView kv;
  const int32_t* block_table;
  int64_t from;
  int64_t to;

  template <typename Visit>
  void ForEachPointer(const Visit& visit) const {
    visit(kv.base);
    visit(block_table);
  }

  template <typename Block>
  LLMI_HD void operator()(const Block& block) const {
    block.ForEachThread([&](int thread) { CopyHeadSlot(kv, block_table, block.x, from, to, thread, block.num_threads); });
  }
};

// Arguments of both halves of attention: the host's plan (span_plan.h), all on the device, and the part of it that a launch does.
struct AttentionPlan {
  AttentionArgs args;
  const int32_t* row_segments;
  const RowGroup* groups;
  const int32_t* begins;
  const SpanItem* items;
  const int32_t* num_items;
  int64_t item_begin = 0;
  int64_t row_begin = 0;
  int64_t partial_begin = 0;  // index of row_begin's first partial
  float* partials = nullptr;  // [row's span][head][AttentionPartialSize]

  template <typename Visit>
  void ForEachPointer(const Visit& visit) const {
    visit(args.kv.base);
    visit(args.segments);
    visit(args.positions);
    visit(args.q);
    visit(args.sinks);
    visit(args.linear_biases);
    visit(args.out);
    visit(row_segments);
    visit(groups);
    visit(begins);
    visit(items);
    visit(num_items);
    visit(partials);
  }

  // The block's item in this launch; past the last one its group is -1.
  LLMI_HD SpanItem Item(int64_t index) const { return item_begin + index < *num_items ? items[item_begin + index] : SpanItem{-1, 0}; }
  LLMI_HD int64_t FirstSpan(int64_t row) const { return AttentionFirstVisible(args, row) / kAttentionSpan; }
  LLMI_HD int64_t EndSpan(int64_t row) const { return args.positions[row] / kAttentionSpan + 1; }
  LLMI_HD int64_t SpanStride() const { return args.num_heads * AttentionPartialSize(args.kv.head_dim); }
  LLMI_HD float* Partial(int64_t row, int64_t head, int64_t span) const {
    return partials + (begins[row] - partial_begin + span - FirstSpan(row)) * SpanStride() + head * AttentionPartialSize(args.kv.head_dim);
  }
};

// One span of one row, for up to 8 heads of a KV head; a bf16 cache has kernels of its own (bf16_attention_kernels.h). Block x: an
// item, a KV head and a chunk of heads.
struct AttentionSpanKernel {
  struct Shared {
    const uint8_t* k_tiles[kAttentionSpan];
    int32_t lanes_of_slots[kAttentionSpan];
    float weights[kSpanHeads][kAttentionSpan];
    float peaks[kSpanHeads][16];
    float sums[kSpanHeads][16];
  };
  static constexpr size_t kSharedBytes = sizeof(Shared);
  AttentionPlan plan;
  int64_t chunks_per_kv_head;

  template <typename Visit>
  void ForEachPointer(const Visit& visit) const {
    plan.ForEachPointer(visit);
  }

  template <typename Block>
  LLMI_HD void operator()(const Block& block) const {
    const AttentionArgs& args = plan.args;
    const KvView& kv = args.kv;
    const int64_t group = args.num_heads / kv.num_kv_heads;
    const int64_t chunk = block.x % chunks_per_kv_head;
    const int64_t kv_head = block.x / chunks_per_kv_head % kv.num_kv_heads;
    const SpanItem item = plan.Item(block.x / (chunks_per_kv_head * kv.num_kv_heads));
    if (item.group < 0) return;
    const int64_t row = plan.groups[item.group].row_begin;
    const int64_t span = item.span * int64_t{kAttentionSpan};
    const int64_t first = AttentionFirstVisible(args, row);
    const int64_t position = args.positions[row];
    const int64_t begin = (first > span ? first : span) - span;
    const int64_t end = (position + 1 < span + kAttentionSpan ? position + 1 : span + kAttentionSpan) - span;
    const int64_t head_begin = kv_head * group + chunk * kSpanHeads;
    const int64_t num_heads = group - chunk * kSpanHeads < kSpanHeads ? group - chunk * kSpanHeads : kSpanHeads;
    Shared& shared = *reinterpret_cast<Shared*>(block.shared);

    block.ForEachThread([&](int thread) {  // scores
      const AttentionSegment& segment = args.segments[plan.row_segments[row]];
      const float* q = args.q + row * args.q_stride + head_begin * kv.head_dim;
      for (int64_t j = begin + thread; j < end; j += block.num_threads) {
        const int64_t slot = reference::SlotOf(segment, row - segment.row_begin, position, span + j);
        const uint8_t* tile = KvTile(kv, segment.block_table, kv_head, slot);
        shared.k_tiles[j] = tile;
        shared.lanes_of_slots[j] = static_cast<int32_t>(slot % kSlotsPerTile);
        float scores[kSpanHeads] = {};
        AddScores(kv, tile, slot, q, num_heads, scores);
        for (int64_t head = 0; head < num_heads; ++head) {
          shared.weights[head][j] = FinishedScore(args, head_begin + head, span + j, scores[head]);
        }
      }
    });
    block.ForEachThread([&](int thread) {  // maxima, a lane of 16 positions each
      const int64_t head = thread / 16;
      if (head >= num_heads) return;
      float peak = reference::kMinusInfinity;
      for (int64_t j = FirstOfLane(begin, thread % 16); j < end; j += 16) peak = reference::Max(peak, shared.weights[head][j]);
      shared.peaks[head][thread % 16] = peak;
    });
    block.ForEachThread([&](int thread) {  // exponentials and their sums
      const int64_t head = thread / 16;
      if (head >= num_heads) return;
      const float peak = Peak(shared.peaks[head]);
      float sum = 0.0f;
      for (int64_t j = FirstOfLane(begin, thread % 16); j < end; j += 16) {
        const float weight = ExpF32(shared.weights[head][j] - peak);
        shared.weights[head][j] = weight;
        sum = sum + weight;
      }
      shared.sums[head][thread % 16] = sum;
    });
    block.ForEachThread([&](int thread) {  // values
      for (int64_t index = thread; index < num_heads * kv.head_dim; index += block.num_threads) {
        const int64_t head = index / kv.head_dim;
        const int64_t d = index % kv.head_dim;
        const auto value = [&](int64_t j) { return KvValue(kv, shared.k_tiles[j] + KvValueOffset(kv), shared.lanes_of_slots[j], d); };
        float sum = 0.0f;
        for (int64_t j = begin; j < end; ++j) sum = Fma(shared.weights[head][j], value(j), sum);
        plan.Partial(row, head_begin + head, item.span)[d] = sum;
      }
      if (thread >= num_heads) return;
      float* partial = plan.Partial(row, head_begin + thread, item.span) + kv.head_dim;
      partial[0] = Peak(shared.peaks[thread]);
      partial[1] = reference::FoldSum(shared.sums[thread]);
    });
  }

  // The slot's K is loaded once for all heads.
  LLMI_HD static void AddScores(const KvView& kv, const uint8_t* tile, int64_t slot, const float* q, int64_t num_heads, float* scores) {
    for (int64_t d = 0; d < kv.head_dim; ++d) {
      const float k = KvKey(kv, tile, slot, d);
      for (int64_t head = 0; head < num_heads; ++head) scores[head] = Fma(k, q[head * kv.head_dim + d], scores[head]);
    }
  }

  // The first j >= begin with j mod 16 = lane.
  LLMI_HD static int64_t FirstOfLane(int64_t begin, int64_t lane) { return begin + (lane - begin % 16 + 16) % 16; }

  LLMI_HD static float Peak(const float* lanes) {
    float peak = lanes[0];
    for (int i = 1; i < 16; ++i) peak = reference::Max(peak, lanes[i]);
    return peak;
  }
};

// Merges the spans of one row and head, left to right, with the sums of reference::MergeSpans. A span's factors depend only on the greatest
// peak so far, so threads compute them in parallel. Block x: a row; y: a head.
struct AttentionMergeKernel {
  static constexpr int kSpansAtOnce = kAttentionThreads;
  struct Shared {
    float peaks[kSpansAtOnce];
    float sums[kSpansAtOnce];
    float greatest[kSpansAtOnce + 1];  // peak of the spans before
    float keep[kSpansAtOnce];
    float add[kSpansAtOnce];
    float total;
    float last_keep;  // of the sink's merge
  };
  static constexpr size_t kSharedBytes = sizeof(Shared);
  AttentionPlan plan;

  template <typename Visit>
  void ForEachPointer(const Visit& visit) const {
    plan.ForEachPointer(visit);
  }

  template <typename Block>
  LLMI_HD void operator()(const Block& block) const {
    const int64_t row = plan.row_begin + block.x;
    const int64_t num_spans = plan.begins[row + 1] - plan.begins[row];
    if (num_spans == 0) return;  // padding of the launch, or a row of a group that is taken whole
    const int64_t head_dim = plan.args.kv.head_dim;
    float* out = plan.args.out + row * plan.args.out_stride + block.y * head_dim;
    Shared& shared = *reinterpret_cast<Shared*>(block.shared);
    for (int64_t begin = 0; begin < num_spans; begin += kSpansAtOnce) {
      const int count = static_cast<int>(num_spans - begin < kSpansAtOnce ? num_spans - begin : kSpansAtOnce);
      const float* partials = plan.Partial(row, block.y, plan.FirstSpan(row) + begin);
      block.ForEachThread([&](int thread) {
        if (thread >= count) return;
        shared.peaks[thread] = partials[thread * plan.SpanStride() + head_dim];
        shared.sums[thread] = partials[thread * plan.SpanStride() + head_dim + 1];
      });
      block.ForEachThread([&](int thread) {
        if (thread > 0) return;
        if (begin == 0) shared.total = 0.0f;
        shared.greatest[0] = begin == 0 ? reference::kMinusInfinity : shared.greatest[kSpansAtOnce];
        for (int i = 0; i < count; ++i) shared.greatest[i + 1] = reference::Max(shared.greatest[i], shared.peaks[i]);
      });
      block.ForEachThread([&](int thread) {
        if (thread >= count) return;
        const reference::SpanMerge merge = reference::MergePeaks(shared.greatest[thread], shared.peaks[thread]);
        shared.keep[thread] = merge.keep;
        shared.add[thread] = merge.add;
      });
      block.ForEachThread([&](int thread) {
        for (int64_t d = thread; d < head_dim; d += block.num_threads) {
          float sum = begin == 0 ? 0.0f : out[d];
          for (int i = 0; i < count; ++i) sum = Fma(partials[i * plan.SpanStride() + d], shared.add[i], sum * shared.keep[i]);
          out[d] = sum;
        }
        if (thread > 0) return;
        for (int i = 0; i < count; ++i) shared.total = Fma(shared.sums[i], shared.add[i], shared.total * shared.keep[i]);
      });
    }
    block.ForEachThread([&](int thread) {
      const float greatest = shared.greatest[(num_spans - 1) % kSpansAtOnce + 1];
      if (thread == 0) shared.last_keep = reference::MergeSink(AttentionSink(plan.args, block.y), greatest, &shared.total);
    });
    block.ForEachThread([&](int thread) {
      const float inverse = 1.0f / shared.total;
      for (int64_t d = thread; d < head_dim; d += block.num_threads) out[d] = (out[d] * shared.last_keep) * inverse;
    });
  }
};

}  // namespace llmi::cuda

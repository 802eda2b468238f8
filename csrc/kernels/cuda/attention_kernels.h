// kv_write and paged_attention. segments, their tables and parents, positions and row_segments lie on the device; a row of segment -1
// is there to fill up a launch.
#pragma once

#include <cstddef>

#include "core/bfloat16.h"
#include "core/scalar_math.h"
#include "kernels/attention.h"
#include "kernels/cpu/reference/attention_path.h"
#include "kernels/cpu/reference/kv_store.h"
#include "kernels/cpu/reference/lanes.h"
#include "kernels/cuda/block.h"
#include "kernels/kv_elements.h"
#include "kernels/kv_slot.h"

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

// One slot's K and V of one layer to another of the same sequence. Block x: a KV head.
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

// What both halves of attention know: rows [row_begin, ...) of the batch, and room for max_spans partials of each row and head.
struct AttentionPlan {
  AttentionArgs args;
  const int32_t* row_segments;
  int64_t row_begin;
  int64_t max_spans;
  float* partials;  // [row][head][span][AttentionPartialSize]

  template <typename Visit>
  void ForEachPointer(const Visit& visit) const {
    visit(args.kv.base);
    visit(args.segments);
    visit(args.positions);
    visit(args.q);
    visit(args.out);
    visit(row_segments);
    visit(partials);
  }

  LLMI_HD int64_t FirstSpan(int64_t row) const { return AttentionFirstVisible(args, row) / kAttentionSpan; }
  LLMI_HD int64_t EndSpan(int64_t row) const { return args.positions[row] / kAttentionSpan + 1; }
  LLMI_HD float* Partial(int64_t row, int64_t head, int64_t index) const {
    return partials + (((row - row_begin) * args.num_heads + head) * max_spans + index) * AttentionPartialSize(args.kv.head_dim);
  }
};

// One span of one row, for up to 8 heads of a KV head. Block x: row, KV head and chunk of heads; y: the row's how-manieth span.
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
    const int64_t row = plan.row_begin + block.x / (chunks_per_kv_head * kv.num_kv_heads);
    if (plan.row_segments[row] < 0) return;
    const int64_t span_index = plan.FirstSpan(row) + block.y;
    if (span_index >= plan.EndSpan(row)) return;
    const int64_t span = span_index * kAttentionSpan;
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
          const float score = scores[head] * args.scale;
          shared.weights[head][j] = args.soft_cap > 0.0f ? SoftCapF32(score, args.soft_cap) : score;
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
        float weight = ExpF32(shared.weights[head][j] - peak);
        if (kv.type == KvType::kBF16) weight = RoundToBfloat16(weight);
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
        if (kv.type == KvType::kBF16) {
          // Pairs of positions, wherever the row's begin and end: what it does not see is zero.
          for (int64_t pair = begin / 2 * 2; pair < end; pair += 2) {
            const bool sees[2] = {pair >= begin, pair + 1 < end};
            sum = DotPair(sum, sees[0] ? shared.weights[head][pair] : 0.0f, sees[0] ? value(pair) : 0.0f,
                          sees[1] ? shared.weights[head][pair + 1] : 0.0f, sees[1] ? value(pair + 1) : 0.0f);
          }
        } else {
          for (int64_t j = begin; j < end; ++j) sum = Fma(shared.weights[head][j], value(j), sum);
        }
        plan.Partial(row, head_begin + head, block.y)[d] = sum;
      }
      if (thread >= num_heads) return;
      float* partial = plan.Partial(row, head_begin + thread, block.y) + kv.head_dim;
      partial[0] = Peak(shared.peaks[thread]);
      partial[1] = reference::FoldSum(shared.sums[thread]);
    });
  }

  // The slot's K is loaded once for all heads.
  LLMI_HD static void AddScores(const KvView& kv, const uint8_t* tile, int64_t slot, const float* q, int64_t num_heads, float* scores) {
    if (kv.type == KvType::kBF16) {
      for (int64_t d = 0; d < kv.head_dim; d += 2) {
        const float k[2] = {KvKey(kv, tile, slot, d), KvKey(kv, tile, slot, d + 1)};
        for (int64_t head = 0; head < num_heads; ++head) {
          const float* pair = q + head * kv.head_dim + d;
          scores[head] = DotPair(scores[head], k[0], RoundToBfloat16(pair[0]), k[1], RoundToBfloat16(pair[1]));
        }
      }
      return;
    }
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

// The spans of one row and head, left to right. Block x: a row; y: a head.
struct AttentionMergeKernel {
  AttentionPlan plan;

  template <typename Visit>
  void ForEachPointer(const Visit& visit) const {
    plan.ForEachPointer(visit);
  }

  template <typename Block>
  LLMI_HD void operator()(const Block& block) const {
    const AttentionArgs& args = plan.args;
    const int64_t row = plan.row_begin + block.x;
    if (plan.row_segments[row] < 0) return;
    block.ForEachThread([&](int thread) {
      const int64_t head_dim = args.kv.head_dim;
      float* out = args.out + row * args.out_stride + block.y * head_dim;
      for (int64_t d = thread; d < head_dim; d += block.num_threads) {
        reference::MergeSpans(plan.Partial(row, block.y, 0), plan.EndSpan(row) - plan.FirstSpan(row), AttentionPartialSize(head_dim),
                              head_dim, d, d + 1, out);
      }
    });
  }
};

}  // namespace llmi::cuda

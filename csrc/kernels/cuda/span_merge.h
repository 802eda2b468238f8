// The end of a block's span: of all blocks that compute a group's spans for the same heads, the last one (last_block.h) merges them.
#pragma once

#include <cstddef>

#include "kernels/cpu/reference/attention_path.h"
#include "kernels/cpu/reference/elementwise.h"
#include "kernels/cpu/reference/quantize_block.h"
#include "kernels/cuda/attention_plan.h"
#include "kernels/cuda/last_block.h"

namespace llmi::cuda {

// Merges the spans of rows and heads, left to right, with the sums of reference::MergeSpans. A span's factors depend only on the greatest
// peak so far, so threads compute them in parallel, for kHeads heads and kSpans spans at a time.
template <int kHeads>
struct SpanMerge {
  static constexpr int kSpans = 32;
  Array<Array<float, kSpans>, kHeads> peaks;
  Array<Array<float, kSpans>, kHeads> sums;
  Array<Array<float, kSpans + 1>, kHeads> greatest;  // peak of the spans before
  Array<Array<float, kSpans>, kHeads> keep;
  Array<Array<float, kSpans>, kHeads> add;
  Array<float, kHeads> total;
  Array<float, kHeads> last_keep;  // of the sink's merge
  int32_t is_last;

  // Call it when the block has written its partials of the group's span for heads [head_begin, head_begin + num_heads), with the room that
  // it shares with no one else now. count: of these heads and the group.
  template <typename Block>
  LLMI_HD void FinishSpan(const Block& block, const AttentionPlan& plan, const RowGroup& rows, int64_t head_begin, int num_heads,
                          uint32_t* count) {
    const int64_t row_end = rows.row_begin + rows.num_rows;
    const auto num_items = static_cast<uint32_t>(plan.EndSpan(row_end - 1) - plan.FirstSpan(rows.row_begin));
    CountBlock(block, count, num_items, &is_last);
    if (is_last == 0) return;
    for (int64_t row = rows.row_begin; row < row_end; ++row) {
      for (int head = 0; head < num_heads; head += kHeads) {
        MergeRow(block, plan, row, head_begin + head, num_heads - head < kHeads ? num_heads - head : kHeads);
      }
    }
  }

  template <typename Block>
  LLMI_HD void MergeRow(const Block& block, const AttentionPlan& plan, int64_t row, int64_t head_begin, int num_heads) {
    const int head_dim = plan.args.kv.head_dim;
    const int64_t first = plan.FirstSpan(row);
    const int64_t num_spans = plan.EndSpan(row) - first;
    float* out = plan.args.out + row * plan.args.out_stride + head_begin * head_dim;
    for (int64_t begin = 0; begin < num_spans; begin += kSpans) {
      const int count = static_cast<int>(num_spans - begin < kSpans ? num_spans - begin : kSpans);
      const auto partial = [&](int head, int span) { return plan.Partial(row, head_begin + head, first + begin + span); };
      block.ForEachThread([&](int thread) {
        for (int i = thread; i < num_heads * kSpans; i += block.num_threads) {
          if (i % kSpans >= count) continue;
          peaks[i / kSpans][i % kSpans] = LoadFresh(partial(i / kSpans, i % kSpans) + head_dim);
          sums[i / kSpans][i % kSpans] = LoadFresh(partial(i / kSpans, i % kSpans) + head_dim + 1);
        }
      });
      block.ForEachThread([&](int head) {
        if (head >= num_heads) return;
        if (begin == 0) total[head] = 0.0f;
        greatest[head][0] = begin == 0 ? reference::kMinusInfinity : greatest[head][kSpans];
        for (int i = 0; i < count; ++i) greatest[head][i + 1] = reference::Max(greatest[head][i], peaks[head][i]);
      });
      block.ForEachThread([&](int thread) {
        for (int i = thread; i < num_heads * kSpans; i += block.num_threads) {
          if (i % kSpans >= count) continue;
          const reference::SpanMerge merge = reference::MergePeaks(greatest[i / kSpans][i % kSpans], peaks[i / kSpans][i % kSpans]);
          keep[i / kSpans][i % kSpans] = merge.keep;
          add[i / kSpans][i % kSpans] = merge.add;
        }
      });
      block.ForEachThread([&](int thread) {
        for (int i = thread; i < num_heads * head_dim; i += block.num_threads) {
          const int head = i / head_dim;
          float sum = begin == 0 ? 0.0f : out[i];
          const float* values = partial(head, 0) + i % head_dim;
          for (int s = 0; s < count; ++s) sum = Fma(LoadFresh(values + s * plan.SpanStride()), add[head][s], sum * keep[head][s]);
          out[i] = sum;
        }
        if (thread >= num_heads) return;
        for (int s = 0; s < count; ++s) total[thread] = Fma(sums[thread][s], add[thread][s], total[thread] * keep[thread][s]);
      });
    }
    block.ForEachThread([&](int head) {
      if (head >= num_heads) return;
      const float most = greatest[head][(num_spans - 1) % kSpans + 1];
      last_keep[head] = reference::MergeSink(AttentionSink(plan.args, head_begin + head), most, &total[head]);
    });
    block.ForEachThread([&](int thread) {
      for (int i = thread; i < num_heads * head_dim; i += block.num_threads) {
        const float inverse = 1.0f / total[i / head_dim];
        out[i] = (out[i] * last_keep[i / head_dim]) * inverse;
        if (plan.gate.gate != nullptr) reference::GateValue(plan.gate, row, head_begin * head_dim + i);
      }
    });
    if (plan.halves.fragments != nullptr) {
      const int64_t begin = head_begin * head_dim;
      StoreFragments(block, out - begin, row, begin, begin + int64_t{num_heads} * head_dim, plan.halves);
    }
    if (plan.codes.codes == nullptr) return;
    const int64_t first_block = (row * plan.codes.num_cols + head_begin * head_dim) / kBlockSize;
    block.ForEachThread([&](int thread) {
      for (int64_t i = thread; i < num_heads * head_dim / kBlockSize; i += block.num_threads) {
        reference::QuantizeBlock(plan.args.out, first_block + i, plan.codes);
      }
    });
  }
};

}  // namespace llmi::cuda

#include "kernels/ops/attention.h"

#include <memory>

#include "core/scalar_math.h"
#include "kernels/cpu/reference/attention_path.h"
#include "kernels/cpu/reference/lanes.h"
#include "kernels/dispatch/kernel_table.h"
#include "kernels/layout/kv_elements.h"
#include "kernels/ops/attention_score.h"

namespace llmi::reference {
namespace {

// Computes the partials of one span for one query (AttentionPartialSize). of_sinks: the span is that of the sinks, and begins at 0.
void AttendSpan(const AttentionArgs& args, const AttentionSegment& segment, int64_t row, int64_t head, int64_t span, bool of_sinks,
                float* partial) {
  const KvView& kv = args.kv;
  const int64_t kv_head = head / (args.num_heads / kv.num_kv_heads);
  const float* q = args.q + (segment.row_begin + row) * args.q_stride + head * kv.head_dim;
  const int64_t position = args.positions[segment.row_begin + row];
  const int64_t first = of_sinks ? 0 : AttentionFirstSeen(args, segment, segment.row_begin + row);
  const int64_t last = of_sinks ? AttentionSinksSeen(args, segment, segment.row_begin + row) - 1 : position;
  const int64_t begin = span > first ? span : first;
  const int64_t end = span + kAttentionSpan <= last ? span + kAttentionSpan : last + 1;
  for (int64_t d = 0; d < kv.head_dim; ++d) partial[d] = 0.0f;
  partial[kv.head_dim + 1] = kAttentionNothingSeen;
  if (begin >= end) return;
  float p[kAttentionSpan];
  int64_t slots[kAttentionSpan];
  const uint8_t* tiles[kAttentionSpan];
  float maximum = kMinusInfinity;
  for (int64_t j = begin; j < end; ++j) {
    const int64_t slot = slots[j - span] = SlotOf(segment, row, position, j);
    const uint8_t* tile = tiles[j - span] = KvTile(kv, segment.block_table, kv_head, SlotSeen(segment, kv_head, slot));
    const float score = FinishedScore(args, head, j, KvScore(kv, tile, slot, q));
    p[j - span] = score;
    maximum = Max(maximum, score);
  }
  float lanes[16] = {};
  for (int64_t j = begin; j < end; ++j) {
    p[j - span] = ExpF32(p[j - span] - maximum);
    if (kv.type == KvType::kBF16) p[j - span] = RoundToBfloat16(p[j - span]);
    lanes[j % 16] = lanes[j % 16] + p[j - span];
  }
  const auto value = [&](int64_t j, int64_t d) { return KvValue(kv, tiles[j - span] + KvValueOffset(kv), slots[j - span], d); };
  if (kv.type == KvType::kBF16) {
    // Pairs of positions begin at even positions, even if the row's range does not. A position that the row does not see counts as zero.
    for (int64_t pair = begin / 2 * 2; pair < end; pair += 2) {
      const bool sees[2] = {pair >= begin, pair + 1 < end};
      for (int64_t d = 0; d < kv.head_dim; ++d) {
        partial[d] = DotPair(partial[d], sees[0] ? p[pair - span] : 0.0f, sees[0] ? value(pair, d) : 0.0f,
                             sees[1] ? p[pair + 1 - span] : 0.0f, sees[1] ? value(pair + 1, d) : 0.0f);
      }
    }
  } else {
    for (int64_t j = begin; j < end; ++j) {
      for (int64_t d = 0; d < kv.head_dim; ++d) partial[d] = Fma(p[j - span], value(j, d), partial[d]);
    }
  }
  partial[kv.head_dim] = maximum;
  partial[kv.head_dim + 1] = FoldSum(lanes);
}

}  // namespace

void attention_span(const AttentionArgs& args, const AttentionTask& task, int64_t span, float* partials) {
  const bool of_sinks = IsSinkSpan(args, task, span);
  for (int64_t row = task.row_begin; row < task.row_begin + task.num_rows; ++row) {
    for (int64_t head = task.head_begin; head < task.head_begin + task.num_heads; ++head) {
      AttendSpan(args, args.segments[task.segment], row, head, of_sinks ? 0 : span * kAttentionSpan, of_sinks, partials);
      partials += AttentionPartialSize(args.kv.head_dim);
    }
  }
}

void attention_merge(const AttentionArgs& args, const AttentionTask& task, int64_t num_spans, const float* partials) {
  const int64_t size = AttentionPartialSize(args.kv.head_dim);
  const int64_t stride = task.num_rows * task.num_heads * size;
  for (int64_t row = task.row_begin; row < task.row_begin + task.num_rows; ++row) {
    for (int64_t head = task.head_begin; head < task.head_begin + task.num_heads; ++head) {
      float* out = args.out + (args.segments[task.segment].row_begin + row) * args.out_stride + head * args.kv.head_dim;
      MergeSpans(partials, num_spans, stride, args.kv.head_dim, AttentionSink(args, head), out);
      partials += size;
    }
  }
}

void attention(const AttentionArgs& args, const AttentionTask& task) {
  const SpanRange spans = AttentionSpans(args, task);
  const int64_t size = task.num_rows * task.num_heads * AttentionPartialSize(args.kv.head_dim);
  const auto partials = std::make_unique_for_overwrite<float[]>(static_cast<size_t>((spans.end - spans.first) * size));
  for (int64_t span = spans.first; span < spans.end; ++span) attention_span(args, task, span, partials.get() + (span - spans.first) * size);
  attention_merge(args, task, spans.end - spans.first, partials.get());
}

}  // namespace llmi::reference

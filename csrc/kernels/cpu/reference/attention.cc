#include "kernels/attention.h"

#include <memory>

#include "core/scalar_math.h"
#include "kernels/cpu/reference/lanes.h"
#include "kernels/kernel_table.h"
#include "kernels/kv_elements.h"

namespace llmi::reference {
namespace {

constexpr float kMinusInfinity = -__builtin_inff();

// The slot of the row's ancestor (or itself) at `position`.
int64_t SlotOf(const AttentionSegment& segment, int64_t row, int64_t row_position, int64_t position) {
  if (segment.parents == nullptr || position < segment.base_len) return position;
  int64_t node = row;
  for (int64_t p = row_position; p > position; --p) node = segment.parents[node];
  return segment.base_len + node;
}

// What one span gives one query: see AttentionPartialSize.
void AttendSpan(const AttentionArgs& args, const AttentionSegment& segment, int64_t row, int64_t head, int64_t span, float* partial) {
  const KvView& kv = args.kv;
  const int64_t kv_head = head / (args.num_heads / kv.num_kv_heads);
  const float* q = args.q + (segment.row_begin + row) * args.q_stride + head * kv.head_dim;
  const int64_t position = args.positions[segment.row_begin + row];
  const int64_t first = AttentionFirstVisible(args, segment.row_begin + row);
  const int64_t begin = span > first ? span : first;
  const int64_t end = span + kAttentionSpan <= position ? span + kAttentionSpan : position + 1;
  for (int64_t d = 0; d < kv.head_dim; ++d) partial[d] = 0.0f;
  partial[kv.head_dim + 1] = kAttentionNothingSeen;
  if (begin >= end) return;
  float p[kAttentionSpan];
  float maximum = kMinusInfinity;
  for (int64_t j = begin; j < end; ++j) {
    const int64_t slot = SlotOf(segment, row, position, j);
    const uint8_t* tile = KvTile(kv, segment.block_table, kv_head, slot);
    float score = 0.0f;
    for (int64_t d = 0; d < kv.head_dim; ++d) score = Fma(KvKey(kv, tile, slot, d), q[d], score);
    score = score * args.scale;
    if (args.soft_cap > 0.0f) score = SoftCapF32(score, args.soft_cap);
    p[j - span] = score;
    maximum = Max(maximum, score);
  }
  float lanes[16] = {};
  for (int64_t j = begin; j < end; ++j) {
    p[j - span] = ExpF32(p[j - span] - maximum);
    lanes[j % 16] = lanes[j % 16] + p[j - span];
  }
  for (int64_t j = begin; j < end; ++j) {
    const int64_t slot = SlotOf(segment, row, position, j);
    const uint8_t* tile = KvTile(kv, segment.block_table, kv_head, slot) + KvValueOffset(kv);
    for (int64_t d = 0; d < kv.head_dim; ++d) partial[d] = Fma(p[j - span], KvValue(kv, tile, slot, d), partial[d]);
  }
  partial[kv.head_dim] = maximum;
  partial[kv.head_dim + 1] = FoldSum(lanes);
}

// Merges the spans of one query, stride apart, left to right.
void MergeSpans(const float* partials, int64_t num_spans, int64_t stride, int64_t head_dim, float* out) {
  float total_max = kMinusInfinity;
  float total_sum = 0.0f;
  for (int64_t d = 0; d < head_dim; ++d) out[d] = 0.0f;
  for (int64_t span = 0; span < num_spans; ++span) {
    const float* partial = partials + span * stride;
    if (partial[head_dim + 1] == kAttentionNothingSeen) continue;
    const float merged_max = Max(total_max, partial[head_dim]);
    const float keep = ExpF32(total_max - merged_max);
    const float add = ExpF32(partial[head_dim] - merged_max);
    total_sum = Fma(partial[head_dim + 1], add, total_sum * keep);
    for (int64_t d = 0; d < head_dim; ++d) out[d] = Fma(partial[d], add, out[d] * keep);
    total_max = merged_max;
  }
  const float inverse = 1.0f / total_sum;
  for (int64_t d = 0; d < head_dim; ++d) out[d] = out[d] * inverse;
}

}  // namespace

void attention_span(const AttentionArgs& args, const AttentionTask& task, int64_t span, float* partials) {
  for (int64_t row = task.row_begin; row < task.row_begin + task.num_rows; ++row) {
    for (int64_t head = task.head_begin; head < task.head_begin + task.num_heads; ++head) {
      AttendSpan(args, args.segments[task.segment], row, head, span * kAttentionSpan, partials);
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
      MergeSpans(partials, num_spans, stride, args.kv.head_dim, out);
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

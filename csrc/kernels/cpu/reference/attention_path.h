// Functions that the reference attention and the accelerators share: a row's path through its segment, and the merge of spans.
#pragma once

#include "core/scalar_math.h"
#include "kernels/cpu/reference/lanes.h"
#include "kernels/ops/attention.h"

namespace llmi::reference {
namespace {

constexpr float kMinusInfinity = -__builtin_inff();

// The slot of the row's ancestor (or itself) at `position`.
LLMI_HD inline int64_t SlotOf(const AttentionSegment& segment, int64_t row, int64_t row_position, int64_t position) {
  if (segment.parents == nullptr || position < segment.base_len) return position;
  int64_t node = row;
  for (int64_t p = row_position; p > position; --p) node = segment.parents[node];
  return segment.base_len + node;
}

// The merge of a span into the earlier ones: the new maximum, and the factors for the sums of the earlier spans and of this one.
struct SpanMerge {
  float peak;
  float keep;
  float add;
};
LLMI_HD inline SpanMerge MergePeaks(float total_peak, float peak) {
  const float merged = Max(total_peak, peak);
  return {merged, ExpF32(total_peak - merged), ExpF32(peak - merged)};
}

// The last merge, of the head's sink, which has no value; null: none. Changes the sum and returns the factor for the values.
LLMI_HD inline float MergeSink(const float* sink, float total_peak, float* total_sum) {
  if (sink == nullptr) return 1.0f;
  const SpanMerge merge = MergePeaks(total_peak, *sink);
  *total_sum = Fma(1.0f, merge.add, *total_sum * merge.keep);
  return merge.keep;
}

// Merges the spans of one query, stride apart, left to right. sink: of its head, or null.
LLMI_HD inline void MergeSpans(const float* partials, int64_t num_spans, int64_t stride, int64_t head_dim, const float* sink, float* out) {
  float total_max = kMinusInfinity;
  float total_sum = 0.0f;
  for (int64_t d = 0; d < head_dim; ++d) out[d] = 0.0f;
  for (int64_t span = 0; span < num_spans; ++span) {
    const float* partial = partials + span * stride;
    if (partial[head_dim + 1] == kAttentionNothingSeen) continue;
    const SpanMerge merge = MergePeaks(total_max, partial[head_dim]);
    total_sum = Fma(partial[head_dim + 1], merge.add, total_sum * merge.keep);
    for (int64_t d = 0; d < head_dim; ++d) out[d] = Fma(partial[d], merge.add, out[d] * merge.keep);
    total_max = merge.peak;
  }
  const float keep = MergeSink(sink, total_max, &total_sum);
  const float inverse = 1.0f / total_sum;
  for (int64_t d = 0; d < head_dim; ++d) out[d] = (out[d] * keep) * inverse;
}

}  // namespace
}  // namespace llmi::reference

#include "kernels/attention.h"

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

void AttendRow(const AttentionArgs& args, const AttentionSegment& segment, int64_t row, int64_t head) {
  const KvView& kv = args.kv;
  const int64_t kv_head = head / (args.num_heads / kv.num_kv_heads);
  const float* q = args.q + (segment.row_begin + row) * args.q_stride + head * kv.head_dim;
  float* out = args.out + (segment.row_begin + row) * args.out_stride + head * kv.head_dim;
  const int64_t position = args.positions[segment.row_begin + row];
  const int64_t first = args.window > 0 && position + 1 > args.window ? position + 1 - args.window : 0;
  float total_max = kMinusInfinity;
  float total_sum = 0.0f;
  for (int64_t d = 0; d < kv.head_dim; ++d) out[d] = 0.0f;
  for (int64_t span = first / kAttentionSpan * kAttentionSpan; span <= position; span += kAttentionSpan) {
    const int64_t begin = span > first ? span : first;
    const int64_t end = span + kAttentionSpan <= position ? span + kAttentionSpan : position + 1;
    float p[kAttentionSpan];
    float maximum = kMinusInfinity;
    for (int64_t j = begin; j < end; ++j) {
      const int64_t slot = SlotOf(segment, row, position, j);
      const uint8_t* tile = KvTile(kv, segment.block_table, kv_head, slot);
      float score = 0.0f;
      for (int64_t d = 0; d < kv.head_dim; ++d) {
        score = Fma(KvKey(kv, tile, slot, d), q[d], score);
      }
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
    float values[kMaxHeadDim] = {};
    for (int64_t j = begin; j < end; ++j) {
      const int64_t slot = SlotOf(segment, row, position, j);
      const uint8_t* tile = KvTile(kv, segment.block_table, kv_head, slot) + KvValueOffset(kv);
      for (int64_t d = 0; d < kv.head_dim; ++d) {
        values[d] = Fma(p[j - span], KvValue(kv, tile, slot, d), values[d]);
      }
    }
    const float merged_max = Max(total_max, maximum);
    const float keep = ExpF32(total_max - merged_max);
    const float add = ExpF32(maximum - merged_max);
    total_sum = Fma(FoldSum(lanes), add, total_sum * keep);
    for (int64_t d = 0; d < kv.head_dim; ++d) out[d] = Fma(values[d], add, out[d] * keep);
    total_max = merged_max;
  }
  const float inverse = 1.0f / total_sum;
  for (int64_t d = 0; d < kv.head_dim; ++d) out[d] = out[d] * inverse;
}

}  // namespace

void attention(const AttentionArgs& args, const AttentionTask& task) {
  const AttentionSegment& segment = args.segments[task.segment];
  for (int64_t row = task.row_begin; row < task.row_begin + task.num_rows; ++row) {
    for (int64_t head = task.head_begin; head < task.head_begin + task.num_heads; ++head) AttendRow(args, segment, row, head);
  }
}

}  // namespace llmi::reference

// kv_write and paged_attention: the one attention op, for prefill, chunks, decode, verification and trees.
//
// A batch is a list of segments, one for each sequence: `num_rows` new tokens after `base_len` cached ones. Row i of a segment is stored in
// slot base_len + i. In a chain, a row's position is its slot. In a tree (parents not null: parents[i] < i, -1 = after the last cached
// token) its position is base_len + depth, and it sees only the cached tokens and its ancestors. A row at position t sees the positions
// max(0, t - window + 1) to t. In a segment with a view (layout/sparse_view.h) the window is its `recent`, and a row whose window begins
// behind its sinks also sees positions 0 to sinks - 1: they count as a span of their own, merged before all others. With `firsts`
// (encoders, chains alone) row r sees the positions firsts[r] to positions[r], which may be behind its own.
//
// Numerics (per row and head; independent of segments, chunks, blocks and threads):
//   score[j]  = (sum over d in order, fma, of K[j][d] q[d]) * scale, then soft cap if > 0, then, with linear biases,
//               score[j] + slope of the head * j, the product rounded before the sum
//   spans of 256 positions: m = max over the span; p[j] = exp(score[j] - m);
//   l = 16 lanes (j mod 16) added in order, folded 8, 4, 2, 1; o = fma(p[j], V[j], o) in order of j
//   spans merge left to right: M = max(m, m'); o = fma(o', exp(m'-M), o exp(m-M)), l likewise
//   with sinks, one more merge, of the head's sink and no value: M = max(m, sink); o = o exp(m-M), l = exp(sink-M) + l exp(m-M)
//   out = o * (1 / l)
// K and V are read from the cache, in its type, and widened to fp32 exactly; this includes the tokens of this pass.
// bf16: q and p[j] are rounded to bf16 as well (l sums the rounded values), and each step adds two products to a sum: of dimensions d and
// d + 1, or of positions j and j + 1, j even; a position of the pair that the row does not see counts as zero. Each step is DotPair
// (core/bfloat16.h).
// fp8: e4m3 to nearest even, 448 at most (core/float8.h).
// int8: blocks of 16 values of one token's head, code = round_to_even(x * (127 / max|x|)), scale = fp16(max|x| / 127).
// Sources: Dao et al., FlashAttention, 2022 (tiles, online softmax); Kwon et al., PagedAttention, 2023.
#pragma once

#include <stdint.h>

#include "kernels/layout/kv_layout.h"
#include "kernels/layout/sparse_view.h"
#include "kernels/ops/context.h"

namespace llmi {

constexpr int64_t kAttentionSpan = 256;

struct AttentionSegment {
  int64_t row_begin;
  int64_t num_rows;
  int64_t base_len;
  const int32_t* block_table;
  const int32_t* parents = nullptr;  // [num_rows] or null
  SparseView view = {};
  // Of a row alone that picks: positions and slots are those of the tiles that it sees, in order. For each KV head the num_picked first of
  // them [num_kv_heads, num_picked]; those behind are the sequence's, `shift` tiles on. Null: all are the sequence's own.
  const int32_t* picked = nullptr;
  int64_t num_picked = 0;
  int64_t shift = 0;
};

struct AttentionArgs {
  KvView kv;
  const AttentionSegment* segments;
  int64_t num_segments;
  const int32_t* positions;  // [total rows]
  const float* q;            // row r, head h at q + r * q_stride + h * head_dim
  int64_t q_stride;
  int64_t num_heads;  // a multiple of kv.num_kv_heads
  float scale;
  float soft_cap = 0.0f;  // 0: none
  int64_t window = 0;     // 0: all positions
  // [total rows], ascending within a segment, as the positions are; null: by the window
  const int32_t* firsts = nullptr;
  // [num_heads]: a logit of each head that takes part in the softmax and has no value (gpt-oss); null: none
  const float* sinks = nullptr;
  // [num_heads]: slopes (Press et al., ALiBi, 2021), times the position of the key as in Bloom; null: none
  const float* linear_biases = nullptr;
  float* out;  // [total rows, num_heads * head_dim], rows out_stride apart
  int64_t out_stride;
};

struct KvWriteArgs {
  KvView kv;
  const AttentionSegment* segments;
  int64_t num_segments;
  const float* k;  // row r, KV head h at k + r * stride + h * head_dim; v likewise
  const float* v;
  int64_t stride;
};

// Rows [row_begin, row_end) of a segment and KV heads [head_begin, head_end).
struct KvRange {
  int64_t row_begin;
  int64_t row_end;
  int64_t head_begin;
  int64_t head_end;
};

void KvWrite(const KernelContext& context, const KvWriteArgs& args);
void PagedAttention(const KernelContext& context, const AttentionArgs& args);
// Checks the arguments as PagedAttention does, and throws the same errors.
void CheckAttention(const AttentionArgs& args);
// KvWrite, then PagedAttention, for the same segments. No segment may see what another one writes.
void WriteAndAttend(const KernelContext& context, const KvWriteArgs& written, const AttentionArgs& args);

// A unit of attention work: query rows [row_begin, row_begin + num_rows) of one segment, heads
// [head_begin, head_begin + num_heads), all of one KV head. At most kMaxTaskQueries row-head pairs. Rows ascend in
// position: a task has several rows of a chain, but only one of a tree.
constexpr int64_t kMaxTaskQueries = 24;
constexpr int64_t kMaxHeadDim = 576;
struct AttentionTask {
  int32_t segment;
  int32_t row_begin;  // within the segment
  int32_t num_rows;
  int32_t head_begin;
  int32_t num_heads;
  const AttentionTask* next = nullptr;  // probably this thread's next task: its first tiles are prefetched; null: prefetch nothing
};

// The head's sink, or null.
LLMI_HD static inline const float* AttentionSink(const AttentionArgs& args, int64_t head) {
  return args.sinks != nullptr ? args.sinks + head : nullptr;
}

// The KV head of a task's queries.
LLMI_HD static inline int64_t AttentionKvHead(const AttentionArgs& args, const AttentionTask& task) {
  return task.head_begin / (args.num_heads / args.kv.num_kv_heads);
}

// The first position that a row at `position` sees.
LLMI_HD static inline int64_t FirstVisible(int64_t position, int64_t window) {
  return window > 0 && position + 1 > window ? position + 1 - window : 0;
}
LLMI_HD static inline int64_t AttentionFirstVisible(const AttentionArgs& args, int64_t row) {
  return FirstVisible(args.positions[row], args.window);
}
// The same where rows may see those behind them, or less than a window says, which no device knows: where a row's window begins, or 0 if it
// meets the sinks. row: of the batch.
static inline int64_t AttentionFirstSeen(const AttentionArgs& args, const AttentionSegment& segment, int64_t row) {
  if (args.firsts != nullptr) return args.firsts[row];
  const int64_t first = FirstVisible(args.positions[row], segment.view.streams() ? segment.view.recent : args.window);
  return first <= segment.view.sinks ? 0 : first;
}
// The first positions that the row sees apart from its window.
static inline int64_t AttentionSinksSeen(const AttentionArgs& args, const AttentionSegment& segment, int64_t row) {
  return AttentionFirstSeen(args, segment, row) > 0 ? segment.view.sinks : 0;
}

// The sequence's slot that a segment's slot stands for.
static inline int64_t SlotSeen(const AttentionSegment& segment, int64_t kv_head, int64_t slot) {
  if (segment.picked == nullptr) return slot;
  const int64_t tile = slot / kSlotsPerTile;
  const int64_t seen = tile < segment.num_picked ? segment.picked[kv_head * segment.num_picked + tile] : tile + segment.shift;
  return seen * kSlotsPerTile + slot % kSlotsPerTile;
}

// The spans that hold what a task's rows see: span s holds positions [256 s, 256 s + 256). If any of them sees sinks apart from its window,
// these are the first one (IsSinkSpan), by whatever number.
struct SpanRange {
  int64_t first;
  int64_t end;
};

static inline SpanRange AttentionSpans(const AttentionArgs& args, const AttentionTask& task) {
  const AttentionSegment& segment = args.segments[task.segment];
  const int64_t begin = segment.row_begin + task.row_begin;
  const int64_t last = begin + task.num_rows - 1;
  const int64_t first = AttentionFirstSeen(args, segment, begin) / kAttentionSpan;
  return {AttentionSinksSeen(args, segment, last) > 0 ? first - 1 : first, args.positions[last] / kAttentionSpan + 1};
}
static inline bool IsSinkSpan(const AttentionArgs& args, const AttentionTask& task, int64_t span) {
  const AttentionSegment& segment = args.segments[task.segment];
  return span < AttentionFirstSeen(args, segment, segment.row_begin + task.row_begin) / kAttentionSpan;
}

// Partials: the results of one span, which let threads share one task's spans. For each row of the task and each of its heads:
// o [head_dim], then m, then l, or kAttentionNothingSeen instead of l if the query sees no position of the span.
LLMI_HD static inline constexpr int64_t AttentionPartialSize(int64_t head_dim) { return head_dim + 16; }
constexpr float kAttentionNothingSeen = -1.0f;

}  // namespace llmi

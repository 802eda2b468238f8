// Attention over 16 lanes. Definition and order: kernels/ops/attention.h and cpu/reference/attention.cc.
#pragma once

#include "kernels/cpu/simd/attention_tiles-inl.h"

namespace llmi::LLMI_ISA_NAMESPACE {
namespace {

constexpr float kMinusInfinity = -__builtin_inff();

// One query: a row and a head. Positions [first, last] are visible.
struct Query {
  const float* q;
  float* out;
  int64_t first;
  int64_t last;
  int64_t head;
};

// Positions of a span, or tiles of it.
struct Extent {
  int64_t begin;
  int64_t end;
};

// Lists a task's queries: all heads of its first row, then of the next row. Returns their number.
inline int64_t CollectQueries(const AttentionArgs& args, const AttentionTask& task, Query* queries) {
  const AttentionSegment& segment = args.segments[task.segment];
  int64_t count = 0;
  for (int64_t row = segment.row_begin + task.row_begin; row < segment.row_begin + task.row_begin + task.num_rows; ++row) {
    for (int64_t head = task.head_begin; head < task.head_begin + task.num_heads; ++head) {
      queries[count++] = {args.q + row * args.q_stride + head * args.kv.head_dim,
                          args.out + row * args.out_stride + head * args.kv.head_dim, AttentionFirstSeen(args, segment, row),
                          args.positions[row], head};
    }
  }
  return count;
}

// The scores' products of slope and position, for a tile that begins at `position`.
inline F32x16 LinearBias(float slope, int64_t position) {
  constexpr float offsets[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  return Mul(Set1(slope), Add(Set1(static_cast<float>(position)), Load(offsets)));
}

// Masks, scales, caps and biases the scores of one query in these tiles of the span; positions [begin, end) of it are visible. Returns
// their maximum.
inline float FinishScores(const AttentionArgs& args, int64_t head, int64_t span, Extent visible, Extent tiles, float* p) {
  const auto [begin, end] = visible;
  F32x16 peaks = Set1(kMinusInfinity);
  for (int64_t tile = tiles.begin; tile < tiles.end; ++tile) {
    F32x16 score = Mul(Load(p + tile * kSlotsPerTile), Set1(args.scale));
    if (args.soft_cap > 0.0f) score = SoftCap(score, args.soft_cap);
    if (args.linear_biases != nullptr) score = Add(score, LinearBias(args.linear_biases[head], span + tile * kSlotsPerTile));
    const int64_t low = begin - tile * kSlotsPerTile;
    const int64_t high = end - tile * kSlotsPerTile;
    if (low > 0 || high < kSlotsPerTile) {
      const int keep_begin = static_cast<int>(low < 0 ? 0 : low > kSlotsPerTile ? kSlotsPerTile : low);
      const int keep_end = static_cast<int>(high < 0 ? 0 : high > kSlotsPerTile ? kSlotsPerTile : high);
      score = KeepLanes(score, keep_begin < keep_end ? keep_begin : 0, keep_begin < keep_end ? keep_end : 0, Set1(kMinusInfinity));
    }
    Store(p + tile * kSlotsPerTile, score);
    peaks = Max(peaks, score);
  }
  return FoldMax(peaks);
}

// The task's queries in the type that is multiplied with the cache's elements.
template <typename Element>
struct Operands {
  void Round(const Query* queries, int64_t num_queries, int64_t) {
    for (int64_t i = 0; i < num_queries; ++i) q[i] = queries[i].q;
  }
  const float* q[kMaxTaskQueries] = {};
};
template <>
struct Operands<Bfloat16> {
  void Round(const Query* queries, int64_t num_queries, int64_t head_dim) {
    for (int64_t i = 0; i < num_queries; ++i) {
      q[i] = rounded[i];
      for (int64_t d = 0; d < head_dim; d += 16) StoreBfloat16(rounded[i] + d, Load(queries[i].q + d));
    }
  }
  const uint16_t* q[kMaxTaskQueries] = {};
  uint16_t rounded[kMaxTaskQueries][kMaxHeadDim];
};

// Computes the partials (kernels/ops/attention.h) of one span for all queries of the task: scores, span maximum, exponentials, values.
// kPrefetchNext: prefetches tiles.next meanwhile.
template <typename Element, bool kPrefetchNext>
void AttendSpan(const AttentionArgs& args, const Query* queries, int64_t num_queries, int64_t span, const SpanTiles& tiles,
                float* partials) {
  const int64_t head_dim = args.kv.head_dim;
  float p[kMaxTaskQueries][kAttentionSpan];
  int64_t span_first = kAttentionSpan, span_end = 0;
  int64_t begin[kMaxTaskQueries], end[kMaxTaskQueries];
  for (int64_t i = 0; i < num_queries; ++i) {
    begin[i] = queries[i].first > span ? queries[i].first - span : 0;
    end[i] = queries[i].last - span + 1 < kAttentionSpan ? queries[i].last - span + 1 : kAttentionSpan;
    if (begin[i] >= end[i]) continue;
    span_first = begin[i] < span_first ? begin[i] : span_first;
    span_end = end[i] > span_end ? end[i] : span_end;
  }
  const int64_t first_tile = span_first / kSlotsPerTile;
  const int64_t end_tile = (span_end + kSlotsPerTile - 1) / kSlotsPerTile;
  Operands<Element> operands;
  operands.Round(queries, num_queries, head_dim);
  {
    [[maybe_unused]] const FlushSubnormals<kInPairs<Element>> flush;
    ScoreSpan<Element, kScoreQueries, kPrefetchNext>(operands.q, num_queries, tiles, first_tile, end_tile, head_dim, p);
  }
  [[maybe_unused]] uint16_t rounded[kInPairs<Element> ? kMaxTaskQueries : 1][kAttentionSpan];
  for (int64_t i = 0; i < num_queries; ++i) {
    float* partial = partials + i * AttentionPartialSize(head_dim);
    for (int64_t d = 0; d < head_dim; ++d) partial[d] = 0.0f;
    partial[head_dim + 1] = kAttentionNothingSeen;
    if (begin[i] >= end[i]) continue;
    const float maximum = FinishScores(args, queries[i].head, span, {begin[i], end[i]}, {first_tile, end_tile}, p[i]);
    F32x16 lanes = Zero();
    const F32x16 peak = Set1(maximum);
    for (int64_t tile = begin[i] / kSlotsPerTile; tile <= (end[i] - 1) / kSlotsPerTile; ++tile) {
      F32x16 weight = Exp(Sub(Load(p[i] + tile * kSlotsPerTile), peak));
      if constexpr (kInPairs<Element>) {
        StoreBfloat16(rounded[i] + tile * kSlotsPerTile, weight);
        weight = LoadBfloat16(rounded[i] + tile * kSlotsPerTile);
      } else {
        Store(p[i] + tile * kSlotsPerTile, weight);
      }
      lanes = Add(lanes, weight);
    }
    partial[head_dim] = maximum;
    partial[head_dim + 1] = FoldSum(lanes);
  }
  [[maybe_unused]] const FlushSubnormals<kInPairs<Element>> flush;
  if constexpr (kInPairs<Element>) {
    AddValuesOfAll<Element, kValueQueries, kPrefetchNext>(tiles, num_queries, begin, end, head_dim, rounded, partials);
  } else {
    AddValuesOfAll<Element, kValueQueries, kPrefetchNext>(tiles, num_queries, begin, end, head_dim, p, partials);
  }
}

// Finds the tiles of the span that begins at position `span`, from the one that holds `first` to the last one below `end`; the other
// entries of `tiles` stay.
inline void FindTiles(const AttentionArgs& args, const AttentionTask& task, int64_t span, int64_t first, int64_t end, SpanTiles* tiles) {
  const KvView& kv = args.kv;
  const int64_t kv_head = AttentionKvHead(args, task);
  for (int64_t tile = span > first ? 0 : (first - span) / kSlotsPerTile; tile < kTilesPerSpan && span + tile * kSlotsPerTile < end;
       ++tile) {
    const AttentionSegment& segment = args.segments[task.segment];
    tiles->k[tile] = KvTile(kv, segment.block_table, kv_head, SlotSeen(segment, kv_head, span + tile * kSlotsPerTile));
    tiles->v[tile] = tiles->k[tile] + KvValueOffset(kv);
  }
}

// End of the positions that are read from the cache's own tiles. Tiles that hold nodes of a tree are gathered (GatherPath).
inline int64_t SharedEnd(const AttentionSegment& segment, int64_t last) {
  return segment.parents == nullptr ? last + 1 : segment.base_len / kSlotsPerTile * kSlotsPerTile;
}

// Finds the tiles that are computed after a span, up to one span: the task's next span, or the first one of the next task. False if there
// is neither.
inline bool FindNextTiles(const AttentionArgs& args, const AttentionTask& task, int64_t span, int64_t last, SpanTiles* next) {
  const bool in_task = span + kAttentionSpan <= last;
  const AttentionTask* of = in_task ? &task : task.next;
  if (of == nullptr) return false;
  const AttentionSegment& segment = args.segments[of->segment];
  const int64_t begin_row = segment.row_begin + of->row_begin;
  const int64_t first = AttentionFirstSeen(args, segment, begin_row);
  const int64_t next_span = in_task ? span + kAttentionSpan : first / kAttentionSpan * kAttentionSpan;
  FindTiles(args, *of, next_span, first, SharedEnd(segment, args.positions[begin_row + of->num_rows - 1]), next);
  return true;
}

// Finds the tiles of the span that begins at position `span`, and computes the task's partials. path_end: the position of its last row.
template <typename Element>
void SpanPartials(const AttentionArgs& args, const AttentionTask& task, const Query* queries, int64_t num_queries, int64_t span,
                  int64_t path_end, float* partials) {
  const AttentionSegment& segment = args.segments[task.segment];
  const int64_t first = queries[0].first;
  const int64_t last = queries[num_queries - 1].last;
  constexpr int64_t kScratchHeadBytes = kMaxHeadDim * sizeof(Element) + (kHasScales<Element> ? 2 * kMaxHeadDim / kKvScaleBlock : 0);
  alignas(64) uint8_t scratch[2 * kAttentionSpan * kScratchHeadBytes];
  SpanTiles tiles;
  const int64_t shared_end = SharedEnd(segment, last);
  FindTiles(args, task, span, first, shared_end, &tiles);
  if (segment.parents != nullptr && span + kAttentionSpan > shared_end) {
    GatherPath<Element>(args, task, path_end, span, scratch, &tiles);
  }
  SpanTiles next = tiles;
  // With more queries arithmetic is the bottleneck.
  if (num_queries <= kScoreQueries && last == path_end && FindNextTiles(args, task, span, last, &next)) {
    tiles.next = &next;
    AttendSpan<Element, true>(args, queries, num_queries, span, tiles, partials);
  } else {
    AttendSpan<Element, false>(args, queries, num_queries, span, tiles, partials);
  }
}

void SpanPartials(const AttentionArgs& args, const AttentionTask& task, const Query* queries, int64_t num_queries, int64_t span,
                  int64_t path_end, float* partials) {
#ifdef LLMI_ONLY_BF16_CACHE
  SpanPartials<Bfloat16>(args, task, queries, num_queries, span, path_end, partials);
#else
  switch (args.kv.type) {
    case KvType::kInt8: return SpanPartials<int8_t>(args, task, queries, num_queries, span, path_end, partials);
    case KvType::kF8: return SpanPartials<Float8>(args, task, queries, num_queries, span, path_end, partials);
    case KvType::kF16: return SpanPartials<uint16_t>(args, task, queries, num_queries, span, path_end, partials);
    case KvType::kBF16: return SpanPartials<Bfloat16>(args, task, queries, num_queries, span, path_end, partials);
    case KvType::kF32: return SpanPartials<float>(args, task, queries, num_queries, span, path_end, partials);
  }
#endif
}

// A span by its number in AttentionSpans.
inline void NumberedSpan(const AttentionArgs& args, const AttentionTask& task, const Query* queries, int64_t num_queries, int64_t span,
                         float* partials) {
  const int64_t path_end = queries[num_queries - 1].last;
  if (!IsSinkSpan(args, task, span)) {
    return SpanPartials(args, task, queries, num_queries, span * kAttentionSpan, path_end, partials);
  }
  const AttentionSegment& segment = args.segments[task.segment];
  Query sinks[kMaxTaskQueries];
  for (int64_t i = 0; i < num_queries; ++i) {
    sinks[i] = queries[i];
    sinks[i].first = 0;
    sinks[i].last = (queries[i].first > 0 ? segment.view.sinks : 0) - 1;
  }
  SpanPartials(args, task, sinks, num_queries, 0, path_end, partials);
}

// For each query, the state of the merge after some spans; the merged values are in the query's out.
struct Merged {
  float max[kMaxTaskQueries];
  float sum[kMaxTaskQueries];
};

inline void BeginMerge(const Query* queries, int64_t num_queries, int64_t head_dim, Merged* merged) {
  for (int64_t i = 0; i < num_queries; ++i) {
    merged->max[i] = kMinusInfinity;
    merged->sum[i] = 0.0f;
    for (int64_t d = 0; d < head_dim; ++d) queries[i].out[d] = 0.0f;
  }
}

// The factors of the sums before and of those that join them, whose maximum is `peak`. Changes the maximum.
struct MergeFactors {
  float keep;
  float add;
};
inline MergeFactors MergePeak(float peak, float* total) {
  const float merged = *total > peak ? *total : peak;
  float factors[32];
  Store(factors, Exp(Set1(*total - merged)));
  Store(factors + 16, Exp(Set1(peak - merged)));
  *total = merged;
  return {factors[0], factors[16]};
}

inline void MergeSpan(const Query* queries, int64_t num_queries, int64_t head_dim, const float* partials, Merged* merged) {
  for (int64_t i = 0; i < num_queries; ++i) {
    const float* partial = partials + i * AttentionPartialSize(head_dim);
    const float span_max = partial[head_dim];
    const float span_sum = partial[head_dim + 1];
    if (span_sum == kAttentionNothingSeen) continue;
    const auto [keep, add] = MergePeak(span_max, &merged->max[i]);
    merged->sum[i] = __builtin_fmaf(span_sum, add, merged->sum[i] * keep);
    float* out = queries[i].out;
    for (int64_t d = 0; d < head_dim; d += 16) Store(out + d, Fma(Load(partial + d), Set1(add), Mul(Load(out + d), Set1(keep))));
  }
}

inline void EndMerge(const AttentionArgs& args, const Query* queries, int64_t num_queries, Merged* merged) {
  for (int64_t i = 0; i < num_queries; ++i) {
    MergeFactors factors = {1.0f, 0.0f};
    if (const float* sink = AttentionSink(args, queries[i].head); sink != nullptr) {
      factors = MergePeak(*sink, &merged->max[i]);
      merged->sum[i] = __builtin_fmaf(1.0f, factors.add, merged->sum[i] * factors.keep);
    }
    const F32x16 keep = Set1(factors.keep);
    const F32x16 inverse = Set1(1.0f / merged->sum[i]);
    for (int64_t d = 0; d < args.kv.head_dim; d += 16) {
      Store(queries[i].out + d, Mul(Mul(Load(queries[i].out + d), keep), inverse));
    }
  }
}

}  // namespace

// The avx512_bf16 table has only bf16 of its own: for other types avx512's code would be compiled twice.
void attention(const AttentionArgs& args, const AttentionTask& task) {
#ifdef LLMI_ONLY_BF16_CACHE
  if (args.kv.type != KvType::kBF16) return avx512::attention(args, task);
#endif
  const int64_t head_dim = args.kv.head_dim;
  Query queries[kMaxTaskQueries];
  const int64_t num_queries = CollectQueries(args, task, queries);
  Merged merged;
  BeginMerge(queries, num_queries, head_dim, &merged);
  float partials[kMaxTaskQueries * AttentionPartialSize(kMaxHeadDim)];
  const SpanRange spans = AttentionSpans(args, task);
  for (int64_t span = spans.first; span < spans.end; ++span) {
    NumberedSpan(args, task, queries, num_queries, span, partials);
    MergeSpan(queries, num_queries, head_dim, partials, &merged);
  }
  EndMerge(args, queries, num_queries, &merged);
}

void attention_span(const AttentionArgs& args, const AttentionTask& task, int64_t span, float* partials) {
#ifdef LLMI_ONLY_BF16_CACHE
  if (args.kv.type != KvType::kBF16) return avx512::attention_span(args, task, span, partials);
#endif
  Query queries[kMaxTaskQueries];
  const int64_t num_queries = CollectQueries(args, task, queries);
  NumberedSpan(args, task, queries, num_queries, span, partials);
}

void attention_merge(const AttentionArgs& args, const AttentionTask& task, int64_t num_spans, const float* partials) {
  const int64_t head_dim = args.kv.head_dim;
  Query queries[kMaxTaskQueries];
  const int64_t num_queries = CollectQueries(args, task, queries);
  Merged merged;
  BeginMerge(queries, num_queries, head_dim, &merged);
  for (int64_t span = 0; span < num_spans; ++span) {
    MergeSpan(queries, num_queries, head_dim, partials + span * num_queries * AttentionPartialSize(head_dim), &merged);
  }
  EndMerge(args, queries, num_queries, &merged);
}

}  // namespace llmi::LLMI_ISA_NAMESPACE

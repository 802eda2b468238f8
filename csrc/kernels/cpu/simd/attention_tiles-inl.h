// Scores and values of one span of attention, by the type of the cache's elements: 16 lanes = 16 positions (scores) or 16 head
// dimensions (values).
#pragma once

#include "kernels/cpu/simd/bf16_dots-inl.h"

namespace llmi::LLMI_ISA_NAMESPACE {
namespace {

constexpr int64_t kTilesPerSpan = kAttentionSpan / kSlotsPerTile;

struct SpanTiles {
  const uint8_t* k[kTilesPerSpan];
  const uint8_t* v[kTilesPerSpan];
  // The tiles that are computed next, or null: while a tile is used, the next one with its index is prefetched. A tile is too short for the
  // hardware prefetcher, and tiles are not consecutive in memory.
  const SpanTiles* next = nullptr;
};

template <int kBytes>
inline void Prefetch(const uint8_t* data) {
  for (int line = 0; line < kBytes; line += 64) __builtin_prefetch(data + line, 0, 2);
}

// The cache's element: int8_t (codes with scales), Float8, uint16_t (fp16), Bfloat16 (in pairs) or float. It is multiplied with an
// Operand; one multiply-add takes kDepth elements a lane: dimensions of K, positions of V.
enum class Bfloat16 : uint16_t {};
enum class Float8 : uint8_t {};
template <typename Element>
struct Arithmetic {
  using Operand = float;
  static constexpr int kDepth = 1;
};
template <>
struct Arithmetic<Bfloat16> {
  using Operand = uint16_t;
  static constexpr int kDepth = 2;
};
template <typename Element>
using Operand = typename Arithmetic<Element>::Operand;
template <typename Element>
constexpr bool kInPairs = Arithmetic<Element>::kDepth == 2;

inline F32x16 LoadElements(const int8_t* p) { return LoadInt8(p); }
inline F32x16 LoadElements(const Float8* p) { return LoadFloat8(reinterpret_cast<const uint8_t*>(p)); }
inline F32x16 LoadElements(const uint16_t* p) { return LoadHalf(p); }
inline F32x16 LoadElements(const Bfloat16* p) { return LoadPairs(reinterpret_cast<const uint16_t*>(p)); }
inline F32x16 LoadElements(const float* p) { return Load(p); }
inline F32x16 Broadcast(const float* p) { return Set1(*p); }
inline F32x16 Broadcast(const uint16_t* p) { return Set1Pair(p); }

template <typename Element>
inline F32x16 MultiplyAdd(F32x16 a, F32x16 b, F32x16 sum) {
  if constexpr (kInPairs<Element>) return DotPairs(a, b, sum);
  return Fma(a, b, sum);
}

template <typename Element>
constexpr bool kHasScales = false;
template <>
constexpr bool kHasScales<int8_t> = true;

// Copies the K and V on the path of the task's row, which ends at `position`, into scratch tiles, for the tiles of the span that hold tree
// nodes. Bytes are copied, so the results have the bits of a chain's.
template <typename Element>
void GatherPath(const AttentionArgs& args, const AttentionTask& task, int64_t position, int64_t span, uint8_t* scratch, SpanTiles* tiles) {
  const KvView& kv = args.kv;
  const AttentionSegment& segment = args.segments[task.segment];
  const int64_t kv_head = AttentionKvHead(args, task);
  const int64_t first_tile = span > segment.base_len ? span : segment.base_len / kSlotsPerTile * kSlotsPerTile;
  int64_t node = task.row_begin;
  const int64_t span_end = span + kAttentionSpan;
  for (int64_t p = position; p >= first_tile; --p) {
    const int64_t slot = p < segment.base_len ? p : segment.base_len + node;
    if (p >= segment.base_len) node = segment.parents[node];
    if (p >= span_end) continue;
    const int64_t tile = (p - span) / kSlotsPerTile;
    const int64_t lane = p % kSlotsPerTile;
    const uint8_t* from_k = KvTile(kv, segment.block_table, kv_head, slot);
    const Element* k = reinterpret_cast<const Element*>(from_k);
    const Element* v = reinterpret_cast<const Element*>(from_k + KvValueOffset(kv));
    uint8_t* k_tile = scratch + tile * 2 * KvTileBytes(kv);
    uint8_t* v_tile = k_tile + KvTileBytes(kv);
    Element* to_k = reinterpret_cast<Element*>(k_tile);
    Element* to_v = reinterpret_cast<Element*>(v_tile);
    constexpr bool kPairs = kInPairs<Element>;
    for (int64_t d = 0; d < kv.head_dim; ++d) to_k[KvKeyIndex(kPairs, lane, d)] = k[KvKeyIndex(kPairs, slot % kSlotsPerTile, d)];
    if constexpr (kPairs) {
      for (int64_t d = 0; d < kv.head_dim; ++d) {
        to_v[KvValueIndex(kPairs, kv.head_dim, lane, d)] = v[KvValueIndex(kPairs, kv.head_dim, slot % kSlotsPerTile, d)];
      }
    } else {
      CopyBytes(to_v + lane * kv.head_dim, v + slot % kSlotsPerTile * kv.head_dim, kv.head_dim * int64_t{sizeof(Element)});
    }
    if constexpr (kHasScales<Element>) {
      const int64_t num_scales = KvNumScales(kv.head_dim);
      const uint16_t* k_scales = KvTileScales(kv, from_k);
      const uint16_t* v_scales = KvTileScales(kv, from_k + KvValueOffset(kv));
      for (int64_t b = 0; b < num_scales; ++b) {
        KvTileScales(kv, k_tile)[b * kSlotsPerTile + lane] = k_scales[b * kSlotsPerTile + slot % kSlotsPerTile];
        KvTileScales(kv, v_tile)[lane * num_scales + b] = v_scales[slot % kSlotsPerTile * num_scales + b];
      }
    }
    tiles->k[tile] = k_tile;
    tiles->v[tile] = v_tile;
  }
}

// Scores, before scaling, of NQ queries against NT K tiles: NQ x NT sums in flight hide the latency of fma.
template <typename Element, int NQ, int NT, bool kPrefetchNext>
void ScoreTiles(const Operand<Element>* const* queries, const SpanTiles& tiles, int64_t tile, int64_t head_dim,
                float (*p)[kAttentionSpan]) {
  F32x16 sums[NQ][NT];
  for (int i = 0; i < NQ; ++i) {
    for (int t = 0; t < NT; ++t) sums[i][t] = Zero();
  }
  for (int64_t begin = 0; begin < head_dim; begin += kKvScaleBlock) {
    F32x16 scales[NT];
    if constexpr (kHasScales<Element>) {
      for (int t = 0; t < NT; ++t) {
        scales[t] = LoadHalf(reinterpret_cast<const uint16_t*>(tiles.k[tile + t] + kSlotsPerTile * head_dim) + begin);
      }
    }
    if constexpr (kPrefetchNext) {
      constexpr int kBytes = kKvScaleBlock * kSlotsPerTile * static_cast<int>(sizeof(Element));
      for (int t = 0; t < NT; ++t) Prefetch<kBytes>(tiles.next->k[tile + t] + begin * kSlotsPerTile * int64_t{sizeof(Element)});
    }
    for (int64_t d = begin; d < begin + kKvScaleBlock; d += Arithmetic<Element>::kDepth) {
      F32x16 k[NT];
      for (int t = 0; t < NT; ++t) {
        k[t] = LoadElements(reinterpret_cast<const Element*>(tiles.k[tile + t]) + d * kSlotsPerTile);
        if constexpr (kHasScales<Element>) k[t] = Mul(k[t], scales[t]);
      }
      for (int i = 0; i < NQ; ++i) {
        const F32x16 q = Broadcast(queries[i] + d);
        for (int t = 0; t < NT; ++t) sums[i][t] = MultiplyAdd<Element>(k[t], q, sums[i][t]);
      }
    }
  }
  for (int i = 0; i < NQ; ++i) {
    for (int t = 0; t < NT; ++t) Store(p[i] + (tile + t) * kSlotsPerTile, sums[i][t]);
  }
}

// The same for any number of queries, NQ and then fewer at a time, over tiles [first, end).
template <typename Element, int NQ, bool kPrefetchNext>
[[gnu::noinline]] void ScoreSpan(const Operand<Element>* const* queries, int64_t num_queries, const SpanTiles& tiles, int64_t first,
                                 int64_t end, int64_t head_dim, float (*p)[kAttentionSpan]) {
  constexpr int kTiles = ScoreTilesAtOnce(NQ);
  for (; num_queries >= NQ; num_queries -= NQ, queries += NQ, p += NQ) {
    int64_t tile = first;
    for (; tile + kTiles <= end; tile += kTiles) ScoreTiles<Element, NQ, kTiles, kPrefetchNext>(queries, tiles, tile, head_dim, p);
    for (; tile < end; ++tile) ScoreTiles<Element, NQ, 1, kPrefetchNext>(queries, tiles, tile, head_dim, p);
  }
  if constexpr (NQ > 1) ScoreSpan<Element, NQ == 8 ? 4 : NQ - 1, kPrefetchNext>(queries, num_queries, tiles, first, end, head_dim, p);
}

// Values of query i += sum over positions [begin, end) of the span, in order, of p[i][j] V[j], for NQ queries that all
// see those positions, over ND x 16 head dimensions. With pairs, begin and end are even, and kSeen names the positions of each pair that
// the queries see.
enum class Seen { kBoth, kOdd, kEven };
template <typename Element, int NQ, int ND, Seen kSeen, bool kPrefetchNext>
void AddValues(const SpanTiles& tiles, int64_t begin, int64_t end, int64_t head_dim, int64_t dim,
               const Operand<Element> (*p)[kAttentionSpan], float* values) {
  constexpr int kDepth = Arithmetic<Element>::kDepth;
  [[maybe_unused]] constexpr int kBytes = 16 * ND * kDepth * static_cast<int>(sizeof(Element));
  const int64_t stride = AttentionPartialSize(head_dim);
  F32x16 sums[NQ][ND];
  for (int i = 0; i < NQ; ++i) {
    for (int n = 0; n < ND; ++n) sums[i][n] = Load(values + i * stride + dim + 16 * n);
  }
  for (int64_t j = begin; j < end; j += kDepth) {
    const uint8_t* tile = tiles.v[j / kSlotsPerTile];
    const int64_t lane = j % kSlotsPerTile;
    const int64_t offset = (lane * head_dim + dim * kDepth) * int64_t{sizeof(Element)};
    const Element* elements = reinterpret_cast<const Element*>(tile + offset);
    if constexpr (kPrefetchNext) Prefetch<kBytes>(tiles.next->v[j / kSlotsPerTile] + offset);
    F32x16 v[ND];
    for (int n = 0; n < ND; ++n) {
      v[n] = LoadElements(elements + 16 * n * kDepth);
      // The weight of the other position is zero, but its slot may hold NaN if it is not written yet.
      if constexpr (kSeen == Seen::kOdd) v[n] = KeepOdd(v[n]);
      if constexpr (kSeen == Seen::kEven) v[n] = KeepEven(v[n]);
      if constexpr (kHasScales<Element>) {
        const uint16_t* scales = reinterpret_cast<const uint16_t*>(tile + kSlotsPerTile * head_dim) + lane * KvNumScales(head_dim);
        v[n] = Mul(v[n], Set1Half(scales[(dim + 16 * n) / kKvScaleBlock]));
      }
    }
    for (int i = 0; i < NQ; ++i) {
      const F32x16 weight = Broadcast(p[i] + j);
      for (int n = 0; n < ND; ++n) sums[i][n] = MultiplyAdd<Element>(weight, v[n], sums[i][n]);
    }
  }
  for (int i = 0; i < NQ; ++i) {
    for (int n = 0; n < ND; ++n) Store(values + i * stride + dim + 16 * n, sums[i][n]);
  }
}

template <typename Element, int NQ, Seen kSeen, bool kPrefetchNext>
void AddValuesAllDims(const SpanTiles& tiles, int64_t begin, int64_t end, int64_t head_dim, const Operand<Element> (*p)[kAttentionSpan],
                      float* values) {
  constexpr int ND = ValueDimsAtOnce(NQ);
  int64_t dim = 0;
  for (; dim + 16 * ND <= head_dim; dim += 16 * ND)
    AddValues<Element, NQ, ND, kSeen, kPrefetchNext>(tiles, begin, end, head_dim, dim, p, values);
  for (; dim < head_dim; dim += 16) AddValues<Element, NQ, 1, kSeen, kPrefetchNext>(tiles, begin, end, head_dim, dim, p, values);
}

// The same for one query and any range of positions.
template <typename Element>
void AddValuesOfOne(const SpanTiles& tiles, int64_t begin, int64_t end, int64_t head_dim, const Operand<Element> (*p)[kAttentionSpan],
                    float* values) {
  const int64_t even_end = kInPairs<Element> ? end / 2 * 2 : end;
  if constexpr (kInPairs<Element>) {
    if (begin % 2 != 0) {
      AddValuesAllDims<Element, 1, Seen::kOdd, false>(tiles, begin - 1, begin + 1, head_dim, p, values);
      ++begin;
    }
  }
  if (begin < even_end) AddValuesAllDims<Element, 1, Seen::kBoth, false>(tiles, begin, even_end, head_dim, p, values);
  if constexpr (kInPairs<Element>) {
    if (even_end < end) AddValuesAllDims<Element, 1, Seen::kEven, false>(tiles, even_end, even_end + 2, head_dim, p, values);
  }
}

// The same for NQ queries, each over its own positions [begin[i], end[i]): V is loaded once for the positions that all of them see.
template <typename Element, int NQ, bool kPrefetchNext>
void AddValuesTogether(const SpanTiles& tiles, const int64_t* begin, const int64_t* end, int64_t head_dim,
                       const Operand<Element> (*p)[kAttentionSpan], float* values) {
  int64_t common_begin = begin[0];
  int64_t common_end = end[0];
  for (int i = 1; i < NQ; ++i) {
    common_begin = begin[i] > common_begin ? begin[i] : common_begin;
    common_end = end[i] < common_end ? end[i] : common_end;
  }
  if constexpr (kInPairs<Element>) {
    common_begin += common_begin % 2;
    common_end -= common_end % 2;
  }
  const int64_t stride = AttentionPartialSize(head_dim);
  const bool meet = common_begin < common_end;
  for (int i = 0; i < NQ; ++i) {
    const int64_t own_end = meet ? common_begin : end[i];
    if (begin[i] < own_end) AddValuesOfOne<Element>(tiles, begin[i], own_end, head_dim, p + i, values + i * stride);
  }
  if (!meet) return;
  AddValuesAllDims<Element, NQ, Seen::kBoth, kPrefetchNext>(tiles, common_begin, common_end, head_dim, p, values);
  for (int i = 0; i < NQ; ++i) {
    if (common_end < end[i]) AddValuesOfOne<Element>(tiles, common_end, end[i], head_dim, p + i, values + i * stride);
  }
}

// The same for any number of queries, NQ and then fewer at a time.
template <typename Element, int NQ, bool kPrefetchNext>
[[gnu::noinline]] void AddValuesOfAll(const SpanTiles& tiles, int64_t num_queries, const int64_t* begin, const int64_t* end,
                                      int64_t head_dim, const Operand<Element> (*p)[kAttentionSpan], float* values) {
  for (; num_queries >= NQ; num_queries -= NQ, begin += NQ, end += NQ, p += NQ, values += NQ * AttentionPartialSize(head_dim)) {
    AddValuesTogether<Element, NQ, kPrefetchNext>(tiles, begin, end, head_dim, p, values);
  }
  if constexpr (NQ > 1) AddValuesOfAll<Element, NQ - 1, kPrefetchNext>(tiles, num_queries, begin, end, head_dim, p, values);
}

}  // namespace
}  // namespace llmi::LLMI_ISA_NAMESPACE

// kv_write and attention over 16 lanes = 16 positions (scores) or 16 head dimensions (values).
// Definition and order: kernels/attention.h and cpu/reference/attention.cc.
#pragma once

namespace llmi::LLMI_ISA_NAMESPACE {
namespace {

constexpr int64_t kTilesPerSpan = kAttentionSpan / kSlotsPerTile;
constexpr float kMinusInfinity = -__builtin_inff();

struct SpanTiles {
  const uint8_t* k[kTilesPerSpan];
  const uint8_t* v[kTilesPerSpan];
};

// One query: a row and a head. Positions [first, last] are visible.
struct Query {
  const float* q;
  float* out;
  int64_t first;
  int64_t last;
  float max;
  float sum;
};

// The cache's element: int8_t (codes with scales), uint16_t (fp16) or float.
inline F32x16 LoadElements(const int8_t* p) { return LoadInt8(p); }
inline F32x16 LoadElements(const uint16_t* p) { return LoadHalf(p); }
inline F32x16 LoadElements(const float* p) { return Load(p); }

template <typename Element>
constexpr bool kHasScales = sizeof(Element) == 1;

// Copies the K and V of the row's path into scratch tiles, for the tiles of the span that hold tree nodes.
// Bytes move, so the bits are those of a chain.
template <typename Element>
void GatherPath(const AttentionArgs& args, const AttentionSegment& segment, int64_t kv_head, int64_t row, int64_t position, int64_t span,
                uint8_t* scratch, SpanTiles* tiles) {
  const KvView& kv = args.kv;
  const int64_t first_tile = span > segment.base_len ? span : segment.base_len / kSlotsPerTile * kSlotsPerTile;
  int64_t node = row;
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
    for (int64_t d = 0; d < kv.head_dim; ++d) to_k[d * kSlotsPerTile + lane] = k[d * kSlotsPerTile + slot % kSlotsPerTile];
    CopyBytes(to_v + lane * kv.head_dim, v + slot % kSlotsPerTile * kv.head_dim, kv.head_dim * int64_t{sizeof(Element)});
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

// Scores of NQ queries against one K tile, before scaling.
template <typename Element, int NQ>
void ScoreTile(const Query* queries, const uint8_t* k_tile, int64_t head_dim, F32x16* scores) {
  F32x16 sums[NQ];
  for (int i = 0; i < NQ; ++i) sums[i] = Zero();
  const Element* elements = reinterpret_cast<const Element*>(k_tile);
  const uint16_t* scales = reinterpret_cast<const uint16_t*>(k_tile + kSlotsPerTile * head_dim);
  for (int64_t begin = 0; begin < head_dim; begin += kKvScaleBlock, scales += kSlotsPerTile) {
    F32x16 scale = Zero();
    if constexpr (kHasScales<Element>) scale = LoadHalf(scales);
    for (int64_t d = begin; d < begin + kKvScaleBlock; ++d) {
      F32x16 k = LoadElements(elements + d * kSlotsPerTile);
      if constexpr (kHasScales<Element>) k = Mul(k, scale);
      for (int i = 0; i < NQ; ++i) sums[i] = Fma(k, Set1(queries[i].q[d]), sums[i]);
    }
  }
  for (int i = 0; i < NQ; ++i) scores[i] = sums[i];
}

// values[i] += sum over positions [begin, end) of the span, in order, of p[i][j] V[j], for NQ queries that all
// see those positions, over ND x 16 head dimensions.
template <typename Element, int NQ, int ND>
void AddValues(const SpanTiles& tiles, int64_t begin, int64_t end, int64_t head_dim, int64_t dim, const float (*p)[kAttentionSpan],
               float (*values)[kMaxHeadDim]) {
  F32x16 sums[NQ][ND];
  for (int i = 0; i < NQ; ++i) {
    for (int n = 0; n < ND; ++n) sums[i][n] = Load(values[i] + dim + 16 * n);
  }
  for (int64_t j = begin; j < end; ++j) {
    const uint8_t* tile = tiles.v[j / kSlotsPerTile];
    const int64_t lane = j % kSlotsPerTile;
    const Element* elements = reinterpret_cast<const Element*>(tile) + lane * head_dim + dim;
    F32x16 v[ND];
    for (int n = 0; n < ND; ++n) {
      v[n] = LoadElements(elements + 16 * n);
      if constexpr (kHasScales<Element>) {
        const uint16_t* scales = reinterpret_cast<const uint16_t*>(tile + kSlotsPerTile * head_dim) + lane * KvNumScales(head_dim);
        v[n] = Mul(v[n], Set1Half(scales[(dim + 16 * n) / kKvScaleBlock]));
      }
    }
    for (int i = 0; i < NQ; ++i) {
      const F32x16 weight = Set1(p[i][j]);
      for (int n = 0; n < ND; ++n) sums[i][n] = Fma(weight, v[n], sums[i][n]);
    }
  }
  for (int i = 0; i < NQ; ++i) {
    for (int n = 0; n < ND; ++n) Store(values[i] + dim + 16 * n, sums[i][n]);
  }
}

template <typename Element, int NQ>
void AddValuesAllDims(const SpanTiles& tiles, int64_t begin, int64_t end, int64_t head_dim, const float (*p)[kAttentionSpan],
                      float (*values)[kMaxHeadDim]) {
  int64_t dim = 0;
  for (; dim + 16 * kValueDims <= head_dim; dim += 16 * kValueDims) {
    AddValues<Element, NQ, kValueDims>(tiles, begin, end, head_dim, dim, p, values);
  }
  for (; dim < head_dim; dim += 16) AddValues<Element, NQ, 1>(tiles, begin, end, head_dim, dim, p, values);
}

// One span for all queries of the task: scores, span maximum, exponentials, values, merge.
template <typename Element>
void AttendSpan(const AttentionArgs& args, Query* queries, int64_t num_queries, int64_t span, const SpanTiles& tiles) {
  const int64_t head_dim = args.kv.head_dim;
  float p[kMaxTaskQueries][kAttentionSpan];
  float values[kMaxTaskQueries][kMaxHeadDim];
  int64_t span_first = kAttentionSpan;
  int64_t span_last = -1;
  int64_t begin[kMaxTaskQueries];
  int64_t end[kMaxTaskQueries];
  for (int64_t i = 0; i < num_queries; ++i) {
    begin[i] = queries[i].first > span ? queries[i].first - span : 0;
    end[i] = queries[i].last - span + 1 < kAttentionSpan ? queries[i].last - span + 1 : kAttentionSpan;
    if (begin[i] >= end[i]) continue;
    span_first = begin[i] < span_first ? begin[i] : span_first;
    span_last = end[i] - 1 > span_last ? end[i] - 1 : span_last;
  }
  F32x16 peaks[kMaxTaskQueries];
  for (int64_t i = 0; i < num_queries; ++i) peaks[i] = Set1(kMinusInfinity);
  for (int64_t tile = span_first / kSlotsPerTile; tile <= span_last / kSlotsPerTile; ++tile) {
    F32x16 scores[kMaxTaskQueries];
    int64_t i = 0;
    for (; i + kScoreQueries <= num_queries; i += kScoreQueries) {
      ScoreTile<Element, kScoreQueries>(queries + i, tiles.k[tile], head_dim, scores + i);
    }
    for (; i < num_queries; ++i) ScoreTile<Element, 1>(queries + i, tiles.k[tile], head_dim, scores + i);
    for (i = 0; i < num_queries; ++i) {
      F32x16 score = Mul(scores[i], Set1(args.scale));
      if (args.soft_cap > 0.0f) score = SoftCap(score, args.soft_cap);
      const int64_t low = begin[i] - tile * kSlotsPerTile;
      const int64_t high = end[i] - tile * kSlotsPerTile;
      if (low > 0 || high < kSlotsPerTile) {
        const int keep_begin = static_cast<int>(low < 0 ? 0 : low > kSlotsPerTile ? kSlotsPerTile : low);
        const int keep_end = static_cast<int>(high < 0 ? 0 : high > kSlotsPerTile ? kSlotsPerTile : high);
        score = KeepLanes(score, keep_begin < keep_end ? keep_begin : 0, keep_begin < keep_end ? keep_end : 0, Set1(kMinusInfinity));
      }
      Store(p[i] + tile * kSlotsPerTile, score);
      peaks[i] = Max(peaks[i], score);
    }
  }
  float span_max[kMaxTaskQueries];
  float span_sum[kMaxTaskQueries];
  for (int64_t i = 0; i < num_queries; ++i) {
    if (begin[i] >= end[i]) continue;
    span_max[i] = FoldMax(peaks[i]);
    F32x16 lanes = Zero();
    const F32x16 peak = Set1(span_max[i]);
    for (int64_t tile = begin[i] / kSlotsPerTile; tile <= (end[i] - 1) / kSlotsPerTile; ++tile) {
      const F32x16 weight = Exp(Sub(Load(p[i] + tile * kSlotsPerTile), peak));
      Store(p[i] + tile * kSlotsPerTile, weight);
      lanes = Add(lanes, weight);
    }
    span_sum[i] = FoldSum(lanes);
    for (int64_t d = 0; d < head_dim; ++d) values[i][d] = 0.0f;
  }
  // Groups of queries that see the same positions share each V load; rows of one task differ only at the edges.
  for (int64_t i = 0; i < num_queries;) {
    if (begin[i] >= end[i]) {
      ++i;
      continue;
    }
    int64_t group = 1;
    while (group < kValueQueries && i + group < num_queries && begin[i + group] < end[i + group]) ++group;
    int64_t common_begin = begin[i];
    int64_t common_end = end[i];
    for (int64_t g = 1; g < group; ++g) {
      common_begin = begin[i + g] > common_begin ? begin[i + g] : common_begin;
      common_end = end[i + g] < common_end ? end[i + g] : common_end;
    }
    if (group == kValueQueries && common_begin < common_end) {
      for (int64_t g = 0; g < group; ++g) {
        if (begin[i + g] < common_begin)
          AddValuesAllDims<Element, 1>(tiles, begin[i + g], common_begin, head_dim, p + i + g, values + i + g);
      }
      AddValuesAllDims<Element, kValueQueries>(tiles, common_begin, common_end, head_dim, p + i, values + i);
      for (int64_t g = 0; g < group; ++g) {
        if (end[i + g] > common_end) AddValuesAllDims<Element, 1>(tiles, common_end, end[i + g], head_dim, p + i + g, values + i + g);
      }
    } else {
      for (int64_t g = 0; g < group; ++g)
        AddValuesAllDims<Element, 1>(tiles, begin[i + g], end[i + g], head_dim, p + i + g, values + i + g);
    }
    i += group;
  }
  for (int64_t i = 0; i < num_queries; ++i) {
    if (begin[i] >= end[i]) continue;
    Query& query = queries[i];
    float factors[32];
    const float merged_max = query.max > span_max[i] ? query.max : span_max[i];
    Store(factors, Exp(Set1(query.max - merged_max)));
    Store(factors + 16, Exp(Set1(span_max[i] - merged_max)));
    const float keep = factors[0];
    const float add = factors[16];
    query.sum = __builtin_fmaf(span_sum[i], add, query.sum * keep);
    for (int64_t d = 0; d < head_dim; d += 16) {
      Store(query.out + d, Fma(Load(values[i] + d), Set1(add), Mul(Load(query.out + d), Set1(keep))));
    }
    query.max = merged_max;
  }
}

template <typename Element>
void AttendTask(const AttentionArgs& args, const AttentionTask& task) {
  const AttentionSegment& segment = args.segments[task.segment];
  const KvView& kv = args.kv;
  const int64_t kv_head = task.head_begin / (args.num_heads / kv.num_kv_heads);
  Query queries[kMaxTaskQueries];
  int64_t num_queries = 0;
  int64_t first = INT64_MAX;
  int64_t last = 0;
  for (int64_t row = task.row_begin; row < task.row_begin + task.num_rows; ++row) {
    const int64_t position = args.positions[segment.row_begin + row];
    const int64_t visible = args.window > 0 && position + 1 > args.window ? position + 1 - args.window : 0;
    first = visible < first ? visible : first;
    last = position > last ? position : last;
    for (int64_t head = task.head_begin; head < task.head_begin + task.num_heads; ++head) {
      Query& query = queries[num_queries++];
      query.q = args.q + (segment.row_begin + row) * args.q_stride + head * kv.head_dim;
      query.out = args.out + (segment.row_begin + row) * args.out_stride + head * kv.head_dim;
      query.first = visible;
      query.last = position;
      query.max = kMinusInfinity;
      query.sum = 0.0f;
      for (int64_t d = 0; d < kv.head_dim; ++d) query.out[d] = 0.0f;
    }
  }
  constexpr int64_t kScratchHeadBytes = kMaxHeadDim * sizeof(Element) + (kHasScales<Element> ? 2 * kMaxHeadDim / kKvScaleBlock : 0);
  alignas(64) uint8_t scratch[2 * kAttentionSpan * kScratchHeadBytes];
  for (int64_t span = first / kAttentionSpan * kAttentionSpan; span <= last; span += kAttentionSpan) {
    SpanTiles tiles;
    const int64_t shared_end = segment.parents == nullptr ? last + 1 : segment.base_len / kSlotsPerTile * kSlotsPerTile;
    const int64_t tile_begin = span > first ? 0 : (first - span) / kSlotsPerTile;
    for (int64_t tile = tile_begin; tile < kTilesPerSpan && span + tile * kSlotsPerTile < shared_end; ++tile) {
      tiles.k[tile] = KvTile(kv, segment.block_table, kv_head, span + tile * kSlotsPerTile);
      tiles.v[tile] = tiles.k[tile] + KvValueOffset(kv);
    }
    if (segment.parents != nullptr && span + kAttentionSpan > shared_end) {
      GatherPath<Element>(args, segment, kv_head, task.row_begin, last, span, scratch, &tiles);
    }
    AttendSpan<Element>(args, queries, num_queries, span, tiles);
  }
  for (int64_t i = 0; i < num_queries; ++i) {
    const F32x16 inverse = Set1(1.0f / queries[i].sum);
    for (int64_t d = 0; d < kv.head_dim; d += 16) Store(queries[i].out + d, Mul(Load(queries[i].out + d), inverse));
  }
}

// 16 elements of a head, in a row or, of K, in 16 rows of the tile.
template <bool kIsKey, typename Element>
void Spread(const Element* row, Element* out) {
  for (int i = 0; i < 16; ++i) out[kIsKey ? i * kSlotsPerTile : i] = row[i];
}

// One head's K or V as int8: code d of K lies at codes[16 d] and scale b at scales[16 b], those of V side by side.
template <bool kIsKey>
void WriteInt8(const float* x, int64_t head_dim, int8_t* codes, uint16_t* scales) {
  constexpr int64_t kStride = kIsKey ? kSlotsPerTile : 1;
  static_assert(kKvScaleBlock == 16);
  for (int64_t d = 0; d < head_dim; d += kKvScaleBlock) {
    const F32x16 values = Load(x + d);
    const float maximum = FoldMax(Max(Abs(values), Zero()));
    const float poison = FoldSum(Fma(values, Zero(), Zero()));  // NaN as soon as one value is not finite
    const float inverse = poison == 0.0f && maximum > 0x1p-100f ? 127.0f / maximum : 0.0f;
    int8_t row[16];
    StoreInt8(row, poison == 0.0f ? Mul(values, Set1(inverse)) : Zero());
    Spread<kIsKey>(row, codes + d * kStride);
    uint16_t scale[16];
    StoreHalf(scale, Set1(maximum / 127.0f + poison));
    scales[d / kKvScaleBlock * kStride] = scale[0];
  }
}

// One head's K or V as fp16.
template <bool kIsKey>
void WriteHalf(const float* x, int64_t head_dim, uint16_t* out) {
  for (int64_t d = 0; d < head_dim; d += 16) {
    uint16_t row[16];
    StoreHalf(row, Load(x + d));
    Spread<kIsKey>(row, out + d * (kIsKey ? kSlotsPerTile : 1));
  }
}

}  // namespace

void attention(const AttentionArgs& args, const AttentionTask& task) {
  switch (args.kv.element_bytes) {
    case 1: return AttendTask<int8_t>(args, task);
    case 2: return AttendTask<uint16_t>(args, task);
    default: return AttendTask<float>(args, task);
  }
}

void kv_write(const KvWriteArgs& args, const AttentionSegment& segment, int64_t row_begin, int64_t row_end) {
  const KvView& kv = args.kv;
  if (kv.element_bytes == 4) {
    reference::kv_write(args, segment, row_begin, row_end);
    return;
  }
  for (int64_t row = row_begin; row < row_end; ++row) {
    const int64_t slot = segment.base_len + row;
    const int64_t lane = slot % kSlotsPerTile;
    for (int64_t head = 0; head < kv.num_kv_heads; ++head) {
      uint8_t* k_tile = KvTile(kv, segment.block_table, head, slot);
      uint8_t* v_tile = k_tile + KvValueOffset(kv);
      const int64_t offset = (segment.row_begin + row) * args.stride + head * kv.head_dim;
      if (kv.element_bytes == 2) {
        WriteHalf<true>(args.k + offset, kv.head_dim, reinterpret_cast<uint16_t*>(k_tile) + lane);
        WriteHalf<false>(args.v + offset, kv.head_dim, reinterpret_cast<uint16_t*>(v_tile) + lane * kv.head_dim);
      } else {
        WriteInt8<true>(args.k + offset, kv.head_dim, reinterpret_cast<int8_t*>(k_tile) + lane, KvTileScales(kv, k_tile) + lane);
        WriteInt8<false>(args.v + offset, kv.head_dim, reinterpret_cast<int8_t*>(v_tile) + lane * kv.head_dim,
                         KvTileScales(kv, v_tile) + lane * KvNumScales(kv.head_dim));
      }
    }
  }
}

}  // namespace llmi::LLMI_ISA_NAMESPACE

// Attention that may reorder sums: one softmax over the whole context, no spans to merge; values of few queries in two chains.
#include "kernels/ops/attention.h"

#include "free_order.h"

#define LLMI_ISA_NAMESPACE free_order
#define kAttentionSpan kFreeContext  // the kernels' own code below, with one span
#include "free_lanes.h"

#include "kernels/cpu/simd/attention-inl.h"

namespace llmi {
namespace free_order {
namespace {

// Values of NQ queries that see all of [0, end): even and odd positions are separate chains.
template <int NQ, int ND>
void AddInTwoChains(const SpanTiles& tiles, int64_t end, int64_t head_dim, const float (*p)[kFreeContext], float* values) {
  const int64_t stride = AttentionPartialSize(head_dim);
  for (int64_t dim = 0; dim < head_dim; dim += 16 * ND) {
    F32x16 sums[2][NQ][ND];
    for (auto& chain : sums) {
      for (auto& of_query : chain) {
        for (F32x16& sum : of_query) sum = Zero();
      }
    }
    for (int64_t j = 0; j < end; ++j) {
      const auto* v = reinterpret_cast<const uint16_t*>(tiles.v[j / kSlotsPerTile]) + j % kSlotsPerTile * head_dim + dim;
      for (int n = 0; n < ND; ++n) {
        const F32x16 value = LoadHalf(v + 16 * n);
        for (int i = 0; i < NQ; ++i) sums[j % 2][i][n] = Fma(Set1(p[i][j]), value, sums[j % 2][i][n]);
      }
    }
    for (int i = 0; i < NQ; ++i) {
      for (int n = 0; n < ND; ++n) Store(values + i * stride + dim + 16 * n, Add(sums[0][i][n], sums[1][i][n]));
    }
  }
}

void OneSpan(const AttentionArgs& args, const AttentionTask& task) {
  Query queries[kMaxTaskQueries];
  const int64_t num_queries = CollectQueries(args, task, queries);
  float partials[kMaxTaskQueries * AttentionPartialSize(kMaxHeadDim)];
  SpanPartials(args, task, queries, num_queries, 0, queries[num_queries - 1].last, partials);
  for (int64_t i = 0; i < num_queries; ++i) {
    const float* partial = partials + i * AttentionPartialSize(args.kv.head_dim);
    const F32x16 inverse = Set1(1.0f / partial[args.kv.head_dim + 1]);
    for (int64_t d = 0; d < args.kv.head_dim; d += 16) Store(queries[i].out + d, Mul(Load(partial + d), inverse));
  }
}

template <int NQ>
void FewQueries(const AttentionArgs& args, const AttentionTask& task, const Query* queries) {
  const AttentionSegment& segment = args.segments[task.segment];
  const int64_t head_dim = args.kv.head_dim;
  const int64_t end = queries[0].last + 1;
  SpanTiles tiles;
  for (int64_t slot = 0; slot < end; slot += kSlotsPerTile) {
    tiles.k[slot / kSlotsPerTile] = KvTile(args.kv, segment.block_table, task.head_begin / (args.num_heads / args.kv.num_kv_heads), slot);
    tiles.v[slot / kSlotsPerTile] = tiles.k[slot / kSlotsPerTile] + KvValueOffset(args.kv);
  }
  const int64_t end_tile = (end + kSlotsPerTile - 1) / kSlotsPerTile;
  float p[NQ][kFreeContext];
  const float* q[NQ];
  for (int i = 0; i < NQ; ++i) q[i] = queries[i].q;
  ScoreSpan<uint16_t, kScoreQueries, false>(q, NQ, tiles, 0, end_tile, head_dim, p);
  float sums[NQ];
  for (int i = 0; i < NQ; ++i) {
    const F32x16 peak = Set1(FinishScores(args, queries[i].head, 0, {0, end}, {0, end_tile}, p[i]));
    F32x16 lanes = Zero();
    for (int64_t tile = 0; tile < end_tile; ++tile) {
      const F32x16 weight = Exp(Sub(Load(p[i] + tile * kSlotsPerTile), peak));
      Store(p[i] + tile * kSlotsPerTile, weight);
      lanes = Add(lanes, weight);
    }
    sums[i] = FoldSum(lanes);
  }
  float values[NQ * AttentionPartialSize(kMaxHeadDim)];
  AddInTwoChains<NQ, NQ == 1 ? 2 : 1>(tiles, end, head_dim, p, values);
  for (int i = 0; i < NQ; ++i) {
    const float* value = values + i * AttentionPartialSize(head_dim);
    const F32x16 inverse = Set1(1.0f / sums[i]);
    for (int64_t d = 0; d < head_dim; d += 16) Store(queries[i].out + d, Mul(Load(value + d), inverse));
  }
}

void TwoChains(const AttentionArgs& args, const AttentionTask& task) {
  Query queries[kMaxTaskQueries];
  const int64_t num_queries = CollectQueries(args, task, queries);
  if (task.num_rows == 1 && num_queries == 3) return FewQueries<3>(args, task, queries);
  if (task.num_rows == 1 && num_queries == 4) return FewQueries<4>(args, task, queries);
  OneSpan(args, task);
}

}  // namespace
}  // namespace free_order

std::vector<AttentionVariant> FreeAttentions() { return {free_order::OneSpan, free_order::TwoChains}; }

}  // namespace llmi

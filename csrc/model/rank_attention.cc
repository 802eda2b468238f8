#include "model/rank_attention.h"

#include <algorithm>
#include <vector>

#include "kernels/ops/attention_step.h"
#include "kernels/ops/rope.h"
#include "model/attention_capture.h"
#include "model/ranks.h"

namespace llmi {
namespace {

// Norms with a weight for each head read those of the rank's heads.
void TakeOwnWeights(const Ranks& ranks, const AttentionSpec& attention, HeadSteps* steps) {
  const auto shift = [](NormArgs& norm, const RowSpan& heads) {
    if (norm.size == 0 || !norm.own_weights) return;
    if (norm.weight != nullptr) norm.weight += heads.begin * norm.size;
    if (norm.bias != nullptr) norm.bias += heads.begin * norm.size;
  };
  shift(steps->query_norm, ranks.QueryHeads(attention));
  shift(steps->key_norm, ranks.KvHeads(attention));
}

// Takes norms over all heads (HeadNormSpan::kProjection) out of the steps, with a rotation before them: whole rows are gathered and normed.
void NormWholeProjections(const LayerPass& pass, const AttentionSpec& attention, const LayerWeights& weights, const ProjectedHeads& heads,
                          HeadSteps* steps) {
  const HeadNormsSpec& norms = attention.norms;
  if (norms.span != HeadNormSpan::kProjection) return;
  if (norms.after_rope && steps->rope.rotary_dim > 0) {
    Rope(pass.context, steps->rope);
    steps->rope = {};
  }
  const int64_t size = attention.head_dim;
  const auto norm_whole = [&](const PlacedNorm& norm, float* own, const RowSpan& held, int64_t num_heads, const auto& gather) {
    if (!norm.spec.present) return;
    const int64_t width = num_heads * size;
    float* whole = Floats(pass.context, pass.workspace.packed, pass.num_rows * width);
    CopyColumns(pass.context, own, heads.stride, pass.num_rows, held.size() * size, whole + held.begin * size, width);
    gather(whole);
    Norm(pass.context, RowNorm(norm.spec, norm.weights, whole, whole, pass.num_rows, width));
    CopyColumns(pass.context, whole + held.begin * size, width, pass.num_rows, held.size() * size, own, heads.stride);
  };
  const Ranks& ranks = *pass.ranks;
  norm_whole({norms.query, weights.query_norm}, heads.queries, ranks.QueryHeads(attention), attention.num_heads,
             [&](float* whole) { ranks.GatherQueryHeads(whole, pass.num_rows, attention, size); });
  norm_whole({norms.key, weights.key_norm}, heads.keys, ranks.KvHeads(attention), attention.num_kv_heads,
             [&](float* whole) { ranks.GatherKvHeads(whole, pass.num_rows, attention, size); });
  steps->query_norm = {};
  steps->key_norm = {};
}

// Query heads [queries.begin, queries.end) that share KV heads in equal numbers.
struct HeadPiece {
  RowSpan queries, keys;
};

// A rank's heads as pieces: perhaps a part of the first KV head's, then whole ones, then a part of the last one's.
std::vector<HeadPiece> PiecesOf(const RowSpan& queries, int64_t per_key) {
  std::vector<HeadPiece> pieces;
  for (int64_t begin = queries.begin; begin < queries.end;) {
    const int64_t key = begin / per_key;
    const int64_t whole_end = queries.end / per_key * per_key;
    const int64_t end = begin % per_key == 0 && whole_end > begin ? whole_end : std::min(queries.end, (key + 1) * per_key);
    pieces.push_back({{begin, end}, {key, (end + per_key - 1) / per_key}});
    begin = end;
  }
  return pieces;
}

// The attention of one piece. kv: the rank's heads. out: of all heads.
AttentionArgs PieceArgs(AttentionArgs args, const HeadPiece& piece, const AttentionSpec& attention, const Ranks& ranks) {
  const int64_t head_size = args.kv.head_dim;
  const int64_t tiles_per_block = args.kv.block_size / kSlotsPerTile;
  args.kv.layer_offset += (piece.keys.begin - ranks.KvHeads(attention).begin) * 2 * tiles_per_block * KvTileBytes(args.kv);
  args.kv.num_kv_heads = static_cast<int32_t>(piece.keys.size());
  args.q += (piece.queries.begin - ranks.QueryHeads(attention).begin) * head_size;
  args.num_heads = piece.queries.size();
  if (args.sinks != nullptr) args.sinks += piece.queries.begin;
  if (args.linear_biases != nullptr) args.linear_biases += piece.queries.begin;
  args.out += piece.queries.begin * head_size;
  return args;
}

}  // namespace

void AttendOnRank(const LayerPass& pass, int64_t layer, const LayerWeights& weights, const ProjectedHeads& heads, const LayerCache& cache,
                  GateArgs gate, float* attended, ForwardResult* result) {
  const Ranks& ranks = *pass.ranks;
  const AttentionSpec& attention = pass.spec.layers[static_cast<size_t>(layer)].attention;
  const RowSpan queries = ranks.QueryHeads(attention);
  const std::vector<HeadPiece> pieces = PiecesOf(queries, attention.num_heads / attention.num_kv_heads);
  const int64_t head_size = attention.padded_head_dim();
  HeadSteps steps = StepsOf(pass, layer, weights, heads);
  TakeOwnWeights(ranks, attention, &steps);
  NormWholeProjections(pass, attention, weights, heads, &steps);
  AttentionArgs args = AttentionOf(pass, layer, weights, heads, cache.kv, attended);
  args.segments = cache.segments;
  args.num_segments = cache.num_segments;
  SeeRows(cache, &args);
  if (queries.size() > 0) {
    PrepareHeads(pass.context, steps);
    if (heads.num_keys > 0) {
      KvWrite(pass.context, {.kv = cache.kv,
                             .segments = cache.segments,
                             .num_segments = cache.num_segments,
                             .k = heads.keys,
                             .v = heads.values,
                             .stride = heads.stride});
    }
    for (const HeadPiece& piece : pieces) PagedAttention(pass.context, PieceArgs(args, piece, attention, ranks));
    if (gate.x != nullptr) {
      const int64_t width = queries.size() * head_size;
      gate.x = Floats(pass.context, pass.workspace.own, pass.num_rows * width);
      CopyColumns(pass.context, attended + queries.begin * head_size, args.out_stride, pass.num_rows, width, gate.x, width);
      Gate(pass.context, gate);
      CopyColumns(pass.context, gate.x, width, pass.num_rows, width, attended + queries.begin * head_size, args.out_stride);
    }
  }
  const std::vector<int>& wanted = cache.batch.attention_layers;
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (wanted[i] == layer + 1) result->attention[i] = WeightsOfAllHeads(pass, attention, args, cache.batch.wanted_rows);
  }
  ranks.GatherQueryHeads(attended, pass.num_rows, attention, head_size);
}

std::vector<std::vector<float>> WeightsOfAllHeads(const LayerPass& pass, const AttentionSpec& attention, const AttentionArgs& args,
                                                  const std::vector<int32_t>& wanted_rows) {
  const Ranks& ranks = *pass.ranks;
  const std::vector<HeadPiece> pieces = PiecesOf(ranks.QueryHeads(attention), attention.num_heads / attention.num_kv_heads);
  std::vector<std::vector<std::vector<float>>> own;  // by piece, by row
  for (const HeadPiece& piece : pieces)
    own.push_back(WantedWeights(pass.context, PieceArgs(args, piece, attention, ranks), pass.num_rows, wanted_rows));
  std::vector<std::vector<float>> weights;
  const AttentionSegment* segment = args.segments;
  for (size_t i = 0; i < wanted_rows.size(); ++i) {
    while (wanted_rows[i] >= segment->row_begin + segment->num_rows) ++segment;
    const int64_t length = segment->base_len + wanted_rows[i] - segment->row_begin + 1;
    std::vector<float>& row = weights.emplace_back(static_cast<size_t>(attention.num_heads * length));
    for (size_t p = 0; p < pieces.size(); ++p)
      std::copy(own[p][i].begin(), own[p][i].end(), row.begin() + pieces[p].queries.begin * length);
    ranks.GatherQueryHeads(row.data(), 1, attention, length, GatherPlace::kHost);
  }
  return weights;
}

}  // namespace llmi

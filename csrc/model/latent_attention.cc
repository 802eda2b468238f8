#include "model/latent_attention.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "kernels/ops/experts.h"
#include "kernels/ops/linear_step.h"
#include "kernels/ops/row_ops.h"
#include "model/attention_capture.h"
#include "model/rank_attention.h"
#include "model/ranks.h"

namespace llmi {
namespace {

// What projections make of a row, side by side: queries of `heads` without their rotated part, these parts, the rotated key, the latent,
// and the latent of queries.
struct Projected {
  RowSpan heads;  // all, or the rank's
  float* query;
  float* query_rotary;
  float* rotary;  // with the latent behind it: K and V of the cache
  float* latent;
  float* query_latent;
  int64_t stride;
};

Projected PlacesOf(const LayerPass& pass, const AttentionSpec& attention) {
  const LatentSpec& latent = attention.latent;
  const RowSpan heads = pass.ranks == nullptr ? RowSpan{0, attention.num_heads} : pass.ranks->QueryHeads(attention);
  const int64_t stride = ProjectedSize(attention);
  float* query = Floats(pass.context, pass.workspace.projected, pass.num_rows * stride);
  float* query_rotary = query + heads.size() * latent.key_size;
  float* rotary = query_rotary + heads.size() * latent.rotary_size;
  return {heads, query, query_rotary, rotary, rotary + latent.rotary_size, rotary + attention.head_dim, stride};
}

// x W^T of all rows in the pass's norm, stored from `out` on, side by side.
void ProjectStream(const LayerPass& pass, const LayerSpec& spec, const LayerWeights& weights, float* normed_at,
                   const std::vector<LinearPart>& parts, const LinearInput& input, float* out, int64_t stride) {
  const PlacedNorm placed{spec.attention_norm, weights.attention_norm};
  const int64_t hidden = pass.spec.hidden_size;
  const float* x = NormedInput(pass.context, placed, pass.x, normed_at, pass.num_rows, hidden, input);
  Linear(pass.context, ArgsOf(parts, x, input, pass.num_rows, out, stride, false));
}

void Project(const LayerPass& pass, const LayerSpec& spec, const LayerWeights& weights, float* normed_at, const Projected& to) {
  const LatentSpec& latent = spec.attention.latent;
  const LatentWeights& own = weights.latent;
  const bool has_rank = latent.query_rank > 0;
  const PackedMatrix& first = has_rank ? own.query_down.matrix : own.query.matrix;
  const PackedMatrix& second = has_rank ? first : own.query_rotary.matrix;
  const LinearInput input =
      MakeInput(pass.context, pass.num_rows, {&first, &second, &own.rotary.matrix, &own.latent.matrix}, true, pass.workspace.forms);
  const std::vector<LinearPart> parts =
      has_rank ? PartsOf({&own.rotary, &own.latent, &own.query_down}) : PartsOf({&own.query, &own.query_rotary, &own.rotary, &own.latent});
  ProjectStream(pass, spec, weights, normed_at, parts, input, has_rank ? to.rotary : to.query, to.stride);
  if (!has_rank) return;
  float* x = Floats(pass.context, pass.workspace.query_latent, pass.num_rows * latent.query_rank);
  CopyHeads(pass.context, {to.query_latent, to.stride, 0, x, latent.query_rank, 0, pass.num_rows, 1, latent.query_rank});
  const LinearInput inner =
      MakeInput(pass.context, pass.num_rows, {&own.query.matrix, &own.query_rotary.matrix}, true, pass.workspace.forms);
  NormedInput(pass.context, {latent.query_norm, own.query_norm}, x, x, pass.num_rows, latent.query_rank, inner);
  Linear(pass.context, ArgsOf(PartsOf({&own.query, &own.query_rotary}), x, inner, pass.num_rows, to.query, to.stride, false));
}

// The norm of the latent, and the rotation of all parts that are rotated.
void NormAndRotate(const LayerPass& pass, const AttentionSpec& attention, const LatentWeights& weights, const Projected& to) {
  const LatentSpec& latent = attention.latent;
  if (latent.latent_norm.present) {
    NormArgs norm = RowNorm(latent.latent_norm, weights.latent_norm, to.latent, to.latent, pass.num_rows, latent.rank);
    norm.x_stride = norm.out_stride = to.stride;
    Norm(pass.context, norm);
  }
  if (attention.rope < 0) return;
  Rope(pass.context, {.x = to.query_rotary,  // the rotated key is next to them
                      .x_stride = to.stride,
                      .num_rows = pass.num_rows,
                      .num_heads = to.heads.size() + 1,
                      .head_dim = latent.rotary_size,
                      .rotary_dim = pass.positions.rotary_dim(attention.rope),
                      .cosine = pass.positions.cosine(attention.rope),
                      .sine = pass.positions.sine(attention.rope)});
}

// Values of heads in rows: head h of row r at values + r * row + h * head.
struct HeadRows {
  float* values;
  int64_t row, head, size;
};

// to = W_h from for each of these heads h, whose matrix has to.size rows and from.size columns; `from` and `to` begin with the first one's.
void MultiplyHeads(const LayerPass& pass, const AttentionSpec& attention, const LinearWeights& weights, const RowSpan& span,
                   const HeadRows& from, const HeadRows& to) {
  const int64_t heads = span.size();
  for (int64_t begin = 0; begin < pass.num_rows; begin += kHeadRows) {
    const int64_t rows = std::min(kHeadRows, pass.num_rows - begin);
    float* x = Floats(pass.context, pass.workspace.by_head, 2 * rows * ByHeadSize(attention));
    float* out = x + rows * ByHeadSize(attention);
    CopyHeads(pass.context, {from.values + begin * from.row, from.row, from.head, x, from.size, rows * from.size, rows, heads, from.size});
    const LinearInput input = MakeInput(pass.context, rows * heads, {&weights.matrix}, false, pass.workspace.gathered_forms);
    ConvertInput(pass.context, x, rows * heads, from.size, input);
    LinearPart part = {.weights = weights.matrix.view()};
    part.weights.num_rows = to.size;
    part.weights.data += span.begin * NumTiles(to.size) * PackedTileBytes(part.weights.type, from.size);
    ExpertLinear(pass.context, HeadPairs(heads, rows), ArgsOf({part}, x, input, rows * heads, out, to.size, false));
    CopyHeads(pass.context, {out, to.size, rows * to.size, to.values + begin * to.row, to.row, to.head, rows, heads, to.size});
  }
}

// The rotated parts, and behind them the products with keys' matrices: [num_rows, heads * head_dim].
float* Queries(const LayerPass& pass, const AttentionSpec& attention, const LatentWeights& weights, const Projected& projected) {
  const LatentSpec& latent = attention.latent;
  const int64_t head_dim = attention.head_dim, row = projected.heads.size() * head_dim;
  float* queries = Floats(pass.context, pass.workspace.queries, pass.num_rows * row);
  CopyHeads(pass.context, {projected.query_rotary, projected.stride, latent.rotary_size, queries, row, head_dim, pass.num_rows,
                           projected.heads.size(), latent.rotary_size});
  MultiplyHeads(pass, attention, weights.key_up, projected.heads, {projected.query, projected.stride, latent.key_size, latent.key_size},
                {queries + latent.rotary_size, row, head_dim, latent.rank});
  return queries;
}

// Stores attended latents in args.out. args: with all heads' sinks and biases.
void Attend(const LayerPass& pass, int64_t layer, const Projected& projected, const LayerCache& cache, float* queries, AttentionArgs args) {
  const std::vector<int>& wanted = cache.batch.attention_layers;
  if (args.sinks != nullptr) args.sinks += projected.heads.begin;
  if (args.linear_biases != nullptr) args.linear_biases += projected.heads.begin;
  AttendStep(pass.context, {.heads = {.query_factors = pass.positions.query_factors(layer),
                                      .queries = queries,
                                      .query_size = args.q_stride,
                                      .stride = args.q_stride,
                                      .num_rows = pass.num_rows},
                            .keeps_queries = std::ranges::find(wanted, static_cast<int>(layer) + 1) != wanted.end(),
                            .written = {.kv = cache.kv,
                                        .segments = cache.segments,
                                        .num_segments = cache.num_segments,
                                        .k = projected.rotary,
                                        .v = projected.rotary,
                                        .stride = projected.stride},
                            .attention = args});
}

}  // namespace

void LatentAttentionLayer(const LayerPass& pass, int64_t layer, const LayerWeights& weights, float* normed_at, const LayerCache& cache,
                          ForwardResult* result) {
  const LayerSpec& spec = pass.spec.layers[static_cast<size_t>(layer)];
  const AttentionSpec& attention = spec.attention;
  const LatentSpec& latent = attention.latent;
  const Projected projected = PlacesOf(pass, attention);
  const RowSpan& heads = projected.heads;
  const int64_t head_dim = attention.head_dim, row = heads.size() * head_dim;
  float* attended = Attended(pass, layer);
  AttentionArgs args =
      AttentionOf(pass, layer, weights, {heads.size(), 1, nullptr, projected.rotary, projected.rotary, nullptr, row}, cache.kv, attended);
  args.segments = cache.segments;
  args.num_segments = cache.num_segments;
  SeeRows(cache, &args);
  args.num_heads = heads.size();
  args.out_stride = row;
  const int64_t num_values = HeadValues(attention);
  float* values = Floats(pass.context, pass.workspace.packed, pass.num_rows * num_values);
  if (heads.size() > 0) {
    Project(pass, spec, weights, normed_at, projected);
    NormAndRotate(pass, attention, weights.latent, projected);
    float* queries = Queries(pass, attention, weights.latent, projected);
    args.q = queries;
    Attend(pass, layer, projected, cache, queries, args);
    MultiplyHeads(pass, attention, weights.latent.value_up, heads, {attended + latent.rotary_size, row, head_dim, latent.rank},
                  {values + heads.begin * latent.value_size, num_values, latent.value_size, latent.value_size});
  }
  const std::vector<int>& wanted = cache.batch.attention_layers;
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (wanted[i] != layer + 1) continue;
    result->attention[i] = pass.ranks == nullptr ? WantedWeights(pass.context, args, pass.num_rows, cache.batch.wanted_rows)
                                                 : WeightsOfAllHeads(pass, attention, args, cache.batch.wanted_rows);
  }
  if (pass.ranks != nullptr) pass.ranks->GatherQueryHeads(values, pass.num_rows, attention, latent.value_size);
  const LinearInput input = MakeInput(pass.context, pass.num_rows, {&weights.attention_output.matrix}, false, pass.workspace.forms);
  ConvertInput(pass.context, values, pass.num_rows, num_values, input);
  AddToStream(pass, {.rows = {0, pass.num_rows},
                     .layer = weights.attention_output,
                     .values = values,
                     .input = input,
                     .norm = {spec.post_attention_norm, weights.post_attention_norm},
                     .residual_scale = spec.residual_scale});
}

}  // namespace llmi

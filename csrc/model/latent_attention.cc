#include "model/latent_attention.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "kernels/ops/experts.h"
#include "kernels/ops/linear_step.h"
#include "kernels/ops/row_ops.h"
#include "model/attention_capture.h"

namespace llmi {
namespace {

// What projections make of a row, side by side: queries of all heads without their rotated part, these parts, the rotated key, the latent,
// and the latent of queries.
struct Projected {
  float* query;
  float* query_rotary;
  float* rotary;  // with the latent behind it: K and V of the cache
  float* latent;
  float* query_latent;
  int64_t stride;
};

Projected PlacesOf(const LayerPass& pass, const AttentionSpec& attention) {
  const LatentSpec& latent = attention.latent;
  const int64_t heads = attention.num_heads;
  const int64_t stride = ProjectedSize(attention);
  float* query = Floats(pass.context, pass.workspace.projected, pass.num_rows * stride);
  float* query_rotary = query + heads * latent.key_size;
  float* rotary = query_rotary + heads * latent.rotary_size;
  return {query, query_rotary, rotary, rotary + latent.rotary_size, rotary + attention.head_dim, stride};
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
                      .num_heads = attention.num_heads + 1,
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

// to = W_h from for each head h, whose matrix has to.size rows and from.size columns.
void MultiplyHeads(const LayerPass& pass, const AttentionSpec& attention, const LinearWeights& weights, const HeadRows& from,
                   const HeadRows& to) {
  const int64_t heads = attention.num_heads;
  for (int64_t begin = 0; begin < pass.num_rows; begin += kHeadRows) {
    const int64_t rows = std::min(kHeadRows, pass.num_rows - begin);
    float* x = Floats(pass.context, pass.workspace.by_head, 2 * rows * ByHeadSize(attention));
    float* out = x + rows * ByHeadSize(attention);
    CopyHeads(pass.context, {from.values + begin * from.row, from.row, from.head, x, from.size, rows * from.size, rows, heads, from.size});
    const LinearInput input = MakeInput(pass.context, rows * heads, {&weights.matrix}, false, pass.workspace.gathered_forms);
    ConvertInput(pass.context, x, rows * heads, from.size, input);
    LinearPart part = {.weights = weights.matrix.view()};
    part.weights.num_rows = to.size;
    ExpertLinear(pass.context, HeadPairs(heads, rows), ArgsOf({part}, x, input, rows * heads, out, to.size, false));
    CopyHeads(pass.context, {out, to.size, rows * to.size, to.values + begin * to.row, to.row, to.head, rows, heads, to.size});
  }
}

}  // namespace

void LatentAttentionLayer(const LayerPass& pass, int64_t layer, const LayerWeights& weights, float* normed_at, const LayerCache& cache,
                          ForwardResult* result) {
  const LayerSpec& spec = pass.spec.layers[static_cast<size_t>(layer)];
  const LatentSpec& latent = spec.attention.latent;
  const int64_t heads = spec.attention.num_heads, head_dim = spec.attention.head_dim, row = heads * head_dim;
  const Projected projected = PlacesOf(pass, spec.attention);
  Project(pass, spec, weights, normed_at, projected);
  NormAndRotate(pass, spec.attention, weights.latent, projected);
  float* queries = Floats(pass.context, pass.workspace.queries, pass.num_rows * row);
  CopyHeads(pass.context, {projected.query_rotary, projected.stride, latent.rotary_size, queries, row, head_dim, pass.num_rows, heads,
                           latent.rotary_size});
  MultiplyHeads(pass, spec.attention, weights.latent.key_up, {projected.query, projected.stride, latent.key_size, latent.key_size},
                {queries + latent.rotary_size, row, head_dim, latent.rank});

  float* attended = Attended(pass, layer);
  ProjectedHeads shared = {heads, 1, queries, projected.rotary, projected.rotary, nullptr, row};
  AttentionArgs args = AttentionOf(pass, layer, weights, shared, cache.kv, attended);
  args.segments = cache.segments;
  args.num_segments = cache.num_segments;
  SeeRows(cache, &args);
  const std::vector<int>& wanted = cache.batch.attention_layers;
  AttendStep(pass.context, {.heads = {.query_factors = pass.positions.query_factors(layer),
                                      .queries = queries,
                                      .query_size = row,
                                      .stride = row,
                                      .num_rows = pass.num_rows},
                            .keeps_queries = std::ranges::find(wanted, static_cast<int>(layer) + 1) != wanted.end(),
                            .written = {.kv = cache.kv,
                                        .segments = cache.segments,
                                        .num_segments = cache.num_segments,
                                        .k = projected.rotary,
                                        .v = projected.rotary,
                                        .stride = projected.stride},
                            .attention = args});
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (wanted[i] == layer + 1) result->attention[i] = WantedWeights(pass.context, args, pass.num_rows, cache.batch.wanted_rows);
  }

  const int64_t num_values = HeadValues(spec.attention);
  float* values = Floats(pass.context, pass.workspace.packed, pass.num_rows * num_values);
  MultiplyHeads(pass, spec.attention, weights.latent.value_up, {attended + latent.rotary_size, row, head_dim, latent.rank},
                {values, num_values, latent.value_size, latent.value_size});
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

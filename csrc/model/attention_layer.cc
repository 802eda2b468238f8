#include "model/attention_layer.h"

#include "kernels/ops/rope.h"
#include "kernels/ops/row_ops.h"
#include "model/attention_capture.h"

namespace llmi {
namespace {

// Places in a row of Workspace::projected: query heads, key heads, value heads, gate.
struct Projected {
  float* queries;
  float* keys;
  float* values;
  float* gate;
  int64_t stride;
};

Projected Places(const LayerPass& pass, const AttentionSpec& attention) {
  const int64_t head_dim = pass.spec.padded_head_dim();
  const int64_t stride = ProjectedSize(pass.spec, attention);
  float* queries = Floats(pass.context, pass.workspace.projected, pass.num_rows * stride);
  float* keys = queries + pass.spec.num_heads * head_dim;
  float* values = keys + pass.spec.num_kv_heads * head_dim;
  return {queries, keys, values, values + pass.spec.num_kv_heads * head_dim, stride};
}

void NormHeads(const LayerPass& pass, const HeadNormsSpec& norms, const PlacedNorm& norm, float* heads, int64_t num_heads, int64_t stride) {
  if (!norm.spec.present) return;
  const bool by_head = norms.span == HeadNormSpan::kHead;
  NormArgs args =
      RowNorm(norm.spec, norm.weights, heads, heads, pass.num_rows, by_head ? pass.spec.head_dim : num_heads * pass.spec.head_dim);
  args.x_stride = stride;
  args.out_stride = stride;
  args.num_groups = by_head ? num_heads : 1;
  args.group_stride = by_head ? pass.spec.padded_head_dim() : 0;
  args.own_weights = norms.own_weights;
  Norm(pass.context, args);
}

// Norms of query and key heads, before or after the rotation.
void NormQueriesAndKeys(const LayerPass& pass, const AttentionSpec& attention, const LayerWeights& weights, const Projected& row) {
  const HeadNormsSpec& norms = attention.norms;
  NormHeads(pass, norms, {norms.query, weights.query_norm}, row.queries, pass.spec.num_heads, row.stride);
  NormHeads(pass, norms, {norms.key, weights.key_norm}, row.keys, pass.spec.num_kv_heads, row.stride);
}

// Queries, keys, values and gates of a layer; queries and keys normed and rotated.
Projected Project(const LayerPass& pass, int64_t layer, const LayerWeights& weights, float* normed_at) {
  const LayerSpec& spec = pass.spec.layers[static_cast<size_t>(layer)];
  const AttentionSpec& attention = spec.attention;
  const Projected row = Places(pass, attention);
  const bool gated = attention.gate_kind != GateKind::kNone;
  const PackedMatrix& gate = gated ? weights.attention_gate.matrix : weights.query.matrix;
  const LinearInput input = MakeInput(
      pass.context, pass.num_rows, {&weights.query.matrix, &weights.key.matrix, &weights.value.matrix, &gate}, true, pass.workspace.forms);
  const float* x = NormedInput(pass.context, {spec.attention_norm, weights.attention_norm}, pass.x, normed_at, pass.num_rows,
                               pass.spec.hidden_size, input);
  const std::vector<LinearPart> parts = gated ? PartsOf({&weights.query, &weights.key, &weights.value, &weights.attention_gate})
                                              : PartsOf({&weights.query, &weights.key, &weights.value});
  Linear(pass.context, ArgsOf(parts, x, input, pass.num_rows, row.queries, row.stride, false));
  if (attention.clip > 0) {
    const int64_t num_heads = pass.spec.num_heads + 2 * pass.spec.num_kv_heads;
    ClipRows(pass.context, row.queries, row.stride, pass.num_rows, num_heads * pass.spec.padded_head_dim(),
             static_cast<float>(attention.clip));
  }
  if (!attention.norms.after_rope) NormQueriesAndKeys(pass, attention, weights, row);
  if (attention.rope >= 0) {
    // Query and key heads are next to each other, so one call rotates both.
    Rope(pass.context, {.x = row.queries,
                        .x_stride = row.stride,
                        .num_rows = pass.num_rows,
                        .num_heads = pass.spec.num_heads + pass.spec.num_kv_heads,
                        .head_dim = pass.spec.head_dim,
                        .head_stride = pass.spec.padded_head_dim(),
                        .rotary_dim = pass.positions.rotary_dim(attention.rope),
                        .cosine = pass.positions.cosine(attention.rope),
                        .sine = pass.positions.sine(attention.rope)});
  }
  if (attention.norms.after_rope) NormQueriesAndKeys(pass, attention, weights, row);
  if (const float* factors = pass.positions.query_factors(layer); factors != nullptr) {
    ScaleRows(pass.context, row.queries, row.stride, pass.num_rows, pass.spec.num_heads * pass.spec.padded_head_dim(), factors);
  }
  return row;
}

// Writes keys and values into the cache and attends. Returns the rows [num_rows, num_heads * padded_head_dim].
float* Attend(const LayerPass& pass, int64_t layer, const LayerWeights& weights, const Projected& row, const LayerCache& cache,
              ForwardResult* result) {
  const AttentionSpec& attention = pass.spec.layers[static_cast<size_t>(layer)].attention;
  const int64_t width = pass.spec.num_heads * pass.spec.padded_head_dim();
  float* attended = Floats(pass.context, pass.workspace.attended, pass.num_rows * width);
  const KvWriteArgs written = {
      .kv = cache.kv, .segments = cache.segments, .num_segments = cache.num_segments, .k = row.keys, .v = row.values, .stride = row.stride};
  const AttentionArgs args = {.kv = cache.kv,
                              .segments = cache.segments,
                              .num_segments = cache.num_segments,
                              .positions = cache.batch.positions.data(),
                              .q = row.queries,
                              .q_stride = row.stride,
                              .num_heads = pass.spec.num_heads,
                              .scale = static_cast<float>(attention.scale),
                              .soft_cap = static_cast<float>(attention.soft_cap),
                              .window = attention.window,
                              .sinks = weights.sinks.data(),
                              .linear_biases = weights.linear_biases.data(),
                              .out = attended,
                              .out_stride = width};
  WriteAndAttend(pass.context, written, args);
  for (size_t i = 0; i < cache.batch.attention_layers.size(); ++i) {
    if (cache.batch.attention_layers[i] != layer + 1) continue;
    result->attention[i] = WantedWeights(pass.context, args, pass.num_rows, cache.batch.wanted_rows);
  }
  if (attention.gate_kind != GateKind::kNone) {
    Gate(pass.context, {.x = attended,
                        .gate = row.gate,
                        .gate_stride = row.stride,
                        .per_head = attention.gate_kind == GateKind::kHead,
                        .num_rows = pass.num_rows,
                        .num_heads = pass.spec.num_heads,
                        .head_dim = pass.spec.padded_head_dim()});
  }
  return attended;
}

// The heads without their padding.
float* Packed(const LayerPass& pass, float* attended) {
  const ModelSpec& spec = pass.spec;
  if (spec.padded_head_dim() == spec.head_dim) return attended;
  float* packed = Floats(pass.context, pass.workspace.packed, pass.num_rows * spec.num_heads * spec.head_dim);
  PackHeads(pass.context, attended, pass.num_rows, spec.num_heads, spec.padded_head_dim(), spec.head_dim, packed);
  return packed;
}

}  // namespace

void AttentionLayer(const LayerPass& pass, int64_t layer, const LayerWeights& weights, float* normed_at, const LayerCache& cache,
                    ForwardResult* result) {
  const LayerSpec& spec = pass.spec.layers[static_cast<size_t>(layer)];
  const Projected row = Project(pass, layer, weights, normed_at);
  float* values = Packed(pass, Attend(pass, layer, weights, row, cache, result));
  const LinearInput input = MakeInput(pass.context, pass.num_rows, {&weights.attention_output.matrix}, false, pass.workspace.forms);
  const PlacedNorm norm{spec.attention.output_norm, weights.attention_output_norm};
  NormedInput(pass.context, norm, values, values, pass.num_rows, pass.spec.num_heads * pass.spec.head_dim, input);
  AddToStream(pass, {.rows = {0, pass.num_rows},
                     .layer = weights.attention_output,
                     .values = values,
                     .input = input,
                     .norm = {spec.post_attention_norm, weights.post_attention_norm},
                     .residual_scale = spec.residual_scale});
}

}  // namespace llmi

#include "model/attention_layer.h"

#include <optional>

#include "kernels/ops/linear_step.h"
#include "kernels/ops/rope.h"
#include "kernels/ops/row_ops.h"
#include "model/attention_capture.h"

namespace llmi {
namespace {

ProjectedHeads Places(const LayerPass& pass, const AttentionSpec& attention, HeadKinds kinds) {
  const int64_t head_dim = pass.spec.padded_head_dim();
  const int64_t num_queries = kinds == HeadKinds::kKeysAndValues ? 0 : pass.spec.num_heads;
  const int64_t num_keys = kinds == HeadKinds::kQueries ? 0 : pass.spec.num_kv_heads;
  const int64_t num_heads = num_queries + 2 * num_keys;
  const int64_t stride = num_heads * head_dim + (num_queries > 0 ? GateSize(pass.spec, attention) : 0);
  float* heads = Floats(pass.context, pass.workspace.projected, pass.num_rows * stride);
  float* keys = heads + num_queries * head_dim;
  return {num_queries, num_keys, heads, keys, keys + num_keys * head_dim, heads + num_heads * head_dim, stride};
}

std::vector<LinearPart> HeadParts(HeadKinds kinds, const LinearWeights& query, const LinearWeights& key, const LinearWeights& value,
                                  const LinearWeights* gate) {
  if (kinds == HeadKinds::kKeysAndValues) return PartsOf({&key, &value});
  if (kinds == HeadKinds::kQueries) return gate == nullptr ? PartsOf({&query}) : PartsOf({&query, gate});
  return gate == nullptr ? PartsOf({&query, &key, &value}) : PartsOf({&query, &key, &value, gate});
}

void NormHeads(const LayerPass& pass, const HeadNormsSpec& norms, const PlacedNorm& norm, float* heads, int64_t num_heads, int64_t stride) {
  if (!norm.spec.present || num_heads == 0) return;
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
void NormQueriesAndKeys(const LayerPass& pass, const AttentionSpec& attention, const LayerWeights& weights, const ProjectedHeads& heads) {
  const HeadNormsSpec& norms = attention.norms;
  NormHeads(pass, norms, {norms.query, weights.query_norm}, heads.queries, heads.num_queries, heads.stride);
  NormHeads(pass, norms, {norms.key, weights.key_norm}, heads.keys, heads.num_keys, heads.stride);
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

ProjectedHeads ProjectHeads(const LayerPass& pass, int64_t layer, const LayerWeights& weights, float* normed_at, HeadKinds kinds,
                            const SideInput* side) {
  const LayerSpec& spec = pass.spec.layers[static_cast<size_t>(layer)];
  const AttentionSpec& attention = spec.attention;
  const ProjectedHeads heads = Places(pass, attention, kinds);
  const LinearWeights* gate = attention.gate_kind == GateKind::kNone ? nullptr : &weights.attention_gate;
  const PackedMatrix& last = gate == nullptr ? weights.query.matrix : gate->matrix;
  const LinearInput input = MakeInput(
      pass.context, pass.num_rows, {&weights.query.matrix, &weights.key.matrix, &weights.value.matrix, &last}, true, pass.workspace.forms);
  const std::vector<LinearPart> parts = HeadParts(kinds, weights.query, weights.key, weights.value, gate);
  const PlacedNorm placed{spec.attention_norm, weights.attention_norm};
  const int64_t hidden = pass.spec.hidden_size;
  std::optional<NormArgs> norm;  // of rows that only these layers read
  if (placed.spec.present && normed_at != pass.kept) norm = RowNorm(placed.spec, placed.weights, pass.x, normed_at, pass.num_rows, hidden);
  const float* x = norm ? normed_at : NormedInput(pass.context, placed, pass.x, normed_at, pass.num_rows, hidden, input);
  RunLinearStep(pass.context, {.norm = norm ? &*norm : nullptr,
                               .input = input,
                               .layers = ArgsOf(parts, x, input, pass.num_rows, heads.queries, heads.stride, false)});
  if (side != nullptr) {
    const LinearInput beside =
        MakeInput(pass.context, pass.num_rows, {&side->query.matrix, &side->key.matrix, &side->value.matrix}, true, pass.workspace.forms);
    ConvertInput(pass.context, side->rows, pass.num_rows, pass.spec.hidden_size, beside);
    Linear(pass.context, ArgsOf(HeadParts(kinds, side->query, side->key, side->value, nullptr), side->rows, beside, pass.num_rows,
                                heads.queries, heads.stride, true));
  }
  if (attention.clip > 0) {
    ClipRows(pass.context, heads.queries, heads.stride, pass.num_rows,
             (heads.num_queries + 2 * heads.num_keys) * pass.spec.padded_head_dim(), static_cast<float>(attention.clip));
  }
  if (!attention.norms.after_rope) NormQueriesAndKeys(pass, attention, weights, heads);
  if (attention.rope >= 0) {
    // Query and key heads are next to each other, so one call rotates both.
    Rope(pass.context, {.x = heads.queries,
                        .x_stride = heads.stride,
                        .num_rows = pass.num_rows,
                        .num_heads = heads.num_queries + heads.num_keys,
                        .head_dim = pass.spec.head_dim,
                        .head_stride = pass.spec.padded_head_dim(),
                        .rotary_dim = pass.positions.rotary_dim(attention.rope),
                        .cosine = pass.positions.cosine(attention.rope),
                        .sine = pass.positions.sine(attention.rope)});
  }
  if (attention.norms.after_rope) NormQueriesAndKeys(pass, attention, weights, heads);
  if (const float* factors = pass.positions.query_factors(layer); factors != nullptr && heads.num_queries > 0) {
    ScaleRows(pass.context, heads.queries, heads.stride, pass.num_rows, heads.num_queries * pass.spec.padded_head_dim(), factors);
  }
  return heads;
}

float* Attended(const LayerPass& pass) {
  return Floats(pass.context, pass.workspace.attended, pass.num_rows * pass.spec.num_heads * pass.spec.padded_head_dim());
}

AttentionArgs AttentionOf(const LayerPass& pass, int64_t layer, const LayerWeights& weights, const ProjectedHeads& heads, const KvView& kv,
                          float* out) {
  const AttentionSpec& attention = pass.spec.layers[static_cast<size_t>(layer)].attention;
  return {.kv = kv,
          .segments = nullptr,
          .num_segments = 0,
          .positions = nullptr,
          .q = heads.queries,
          .q_stride = heads.stride,
          .num_heads = pass.spec.num_heads,
          .scale = static_cast<float>(attention.scale),
          .soft_cap = static_cast<float>(attention.soft_cap),
          .window = attention.window,
          .sinks = weights.sinks.data(),
          .linear_biases = weights.linear_biases.data(),
          .out = out,
          .out_stride = pass.spec.num_heads * pass.spec.padded_head_dim()};
}

void AddAttention(const LayerPass& pass, int64_t layer, const LayerWeights& weights, const ProjectedHeads& heads, float* attended) {
  const LayerSpec& spec = pass.spec.layers[static_cast<size_t>(layer)];
  if (spec.attention.gate_kind != GateKind::kNone) {
    Gate(pass.context, {.x = attended,
                        .gate = heads.gate,
                        .gate_stride = heads.stride,
                        .per_head = spec.attention.gate_kind == GateKind::kHead,
                        .num_rows = pass.num_rows,
                        .num_heads = pass.spec.num_heads,
                        .head_dim = pass.spec.padded_head_dim()});
  }
  float* values = Packed(pass, attended);
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

void AttentionLayer(const LayerPass& pass, int64_t layer, const LayerWeights& weights, float* normed_at, const LayerCache& cache,
                    ForwardResult* result) {
  const ProjectedHeads heads = ProjectHeads(pass, layer, weights, normed_at, HeadKinds::kAll);
  float* attended = Attended(pass);
  AttentionArgs args = AttentionOf(pass, layer, weights, heads, cache.kv, attended);
  args.segments = cache.segments;
  args.num_segments = cache.num_segments;
  args.positions = cache.batch.positions.data();
  const KvWriteArgs written = {.kv = cache.kv,
                               .segments = cache.segments,
                               .num_segments = cache.num_segments,
                               .k = heads.keys,
                               .v = heads.values,
                               .stride = heads.stride};
  WriteAndAttend(pass.context, written, args);
  for (size_t i = 0; i < cache.batch.attention_layers.size(); ++i) {
    if (cache.batch.attention_layers[i] != layer + 1) continue;
    result->attention[i] = WantedWeights(pass.context, args, pass.num_rows, cache.batch.wanted_rows);
  }
  AddAttention(pass, layer, weights, heads, attended);
}

}  // namespace llmi

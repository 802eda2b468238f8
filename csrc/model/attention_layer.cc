#include "model/attention_layer.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "kernels/ops/linear_step.h"
#include "kernels/ops/row_ops.h"
#include "model/attention_capture.h"
#include "model/rank_attention.h"
#include "model/ranks.h"

namespace llmi {
namespace {

ProjectedHeads Places(const LayerPass& pass, const AttentionSpec& attention, HeadKinds kinds) {
  const bool all = pass.ranks == nullptr;
  const int64_t head_dim = attention.padded_head_dim();
  const int64_t num_queries = kinds == HeadKinds::kKeysAndValues ? 0 : all ? attention.num_heads : pass.ranks->QueryHeads(attention).size();
  const int64_t num_keys = kinds == HeadKinds::kQueries ? 0 : all ? attention.num_kv_heads : pass.ranks->KvHeads(attention).size();
  const int64_t num_heads = num_queries + 2 * num_keys;
  const int64_t stride = num_heads * head_dim + GateSize(attention) / attention.num_heads * num_queries;
  float* heads = Floats(pass.context, pass.workspace.projected, pass.num_rows * stride);
  float* keys = heads + num_queries * head_dim;
  return {num_queries, num_keys, heads, keys, keys + num_keys * head_dim, heads + num_heads * head_dim, stride};
}

std::vector<LinearPart> HeadParts(HeadKinds kinds, const LinearWeights& query, const LinearWeights& key, const LinearWeights& value,
                                  const LinearWeights* gate) {
  if (kinds != HeadKinds::kQueries && !value.matrix.is_present()) {  // the value is the key
    return kinds == HeadKinds::kAll ? PartsOf({&query, &key}) : PartsOf({&key});
  }
  if (kinds == HeadKinds::kKeysAndValues) return PartsOf({&key, &value});
  if (kinds == HeadKinds::kQueries) return gate == nullptr ? PartsOf({&query}) : PartsOf({&query, gate});
  return gate == nullptr ? PartsOf({&query, &key, &value}) : PartsOf({&query, &key, &value, gate});
}

// Of query or key heads. size 0: there is none.
NormArgs HeadNorm(const LayerPass& pass, const AttentionSpec& attention, const PlacedNorm& norm, float* heads, int64_t num_heads,
                  int64_t stride) {
  if (!norm.spec.present || num_heads == 0) return {};
  const HeadNormsSpec& norms = attention.norms;
  const bool by_head = norms.span == HeadNormSpan::kHead;
  const int64_t size = (by_head ? 1 : num_heads) * attention.head_dim;
  NormArgs args = RowNorm(norm.spec, norm.weights, heads, heads, pass.num_rows, size);
  args.x_stride = stride;
  args.out_stride = stride;
  args.num_groups = by_head ? num_heads : 1;
  args.group_stride = by_head ? attention.padded_head_dim() : 0;
  args.own_weights = norms.own_weights;
  return args;
}

// Of values, each head by itself.
void NormValues(const LayerPass& pass, const AttentionSpec& attention, const LayerWeights& weights, const ProjectedHeads& heads) {
  if (!attention.norms.value.present || heads.num_keys == 0) return;
  const float* from = attention.value_is_key ? heads.keys : heads.values;
  NormArgs args = RowNorm(attention.norms.value, weights.value_norm, from, heads.values, pass.num_rows, attention.head_dim);
  args.x_stride = heads.stride;
  args.out_stride = heads.stride;
  args.num_groups = heads.num_keys;
  args.group_stride = attention.padded_head_dim();
  Norm(pass.context, args);
}

// The heads without their padding.
float* Packed(const LayerPass& pass, const AttentionSpec& spec, float* attended) {
  if (spec.padded_head_dim() == spec.head_dim) return attended;
  float* packed = Floats(pass.context, pass.workspace.packed, pass.num_rows * spec.num_heads * spec.head_dim);
  const int64_t row = spec.num_heads * spec.padded_head_dim(), packed_row = spec.num_heads * spec.head_dim;
  CopyHeads(pass.context,
            {attended, row, spec.padded_head_dim(), packed, packed_row, spec.head_dim, pass.num_rows, spec.num_heads, spec.head_dim});
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
             (heads.num_queries + 2 * heads.num_keys) * attention.padded_head_dim(), static_cast<float>(attention.clip));
  }
  NormValues(pass, attention, weights, heads);
  return heads;
}

HeadSteps StepsOf(const LayerPass& pass, int64_t layer, const LayerWeights& weights, const ProjectedHeads& heads) {
  const AttentionSpec& attention = pass.spec.layers[static_cast<size_t>(layer)].attention;
  const HeadNormsSpec& norms = attention.norms;
  const int64_t head_dim = attention.padded_head_dim();
  HeadSteps steps = {
      .query_norm = HeadNorm(pass, attention, {norms.query, weights.query_norm}, heads.queries, heads.num_queries, heads.stride),
      .key_norm = HeadNorm(pass, attention, {norms.key, weights.key_norm}, heads.keys, heads.num_keys, heads.stride),
      .norms_after_rope = norms.after_rope,
      .query_factors = heads.num_queries > 0 ? pass.positions.query_factors(layer) : nullptr,
      .queries = heads.queries,
      .query_size = heads.num_queries * head_dim,
      .stride = heads.stride,
      .num_rows = pass.num_rows};
  if (attention.rope < 0) return steps;
  // Query and key heads are next to each other, so one call rotates both.
  steps.rope = {.x = heads.queries,
                .x_stride = heads.stride,
                .num_rows = pass.num_rows,
                .num_heads = heads.num_queries + heads.num_keys,
                .head_dim = attention.head_dim,
                .head_stride = head_dim,
                .rotary_dim = pass.positions.rotary_dim(attention.rope),
                .cosine = pass.positions.cosine(attention.rope),
                .sine = pass.positions.sine(attention.rope)};
  return steps;
}

float* Attended(const LayerPass& pass, int64_t layer) {
  const AttentionSpec& attention = pass.spec.layers[static_cast<size_t>(layer)].attention;
  return Floats(pass.context, pass.workspace.attended, pass.num_rows * attention.query_size());
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
          .num_heads = attention.num_heads,
          .scale = static_cast<float>(attention.scale),
          .soft_cap = static_cast<float>(attention.soft_cap),
          .window = attention.window,
          .sinks = weights.sinks.data(),
          .linear_biases = weights.linear_biases.data(),
          .out = out,
          .out_stride = attention.query_size()};
}

namespace {

GateArgs GateOf(const LayerPass& pass, const AttentionSpec& attention, const ProjectedHeads& heads, float* attended) {
  if (attention.gate_kind == GateKind::kNone) return {};
  return {.x = attended,
          .gate = heads.gate,
          .gate_stride = heads.stride,
          .per_head = attention.gate_kind == GateKind::kHead,
          .num_rows = pass.num_rows,
          .num_heads = heads.num_queries,
          .head_dim = attention.padded_head_dim()};
}

LinearInput OutputInput(const LayerPass& pass, const LayerWeights& weights) {
  return MakeInput(pass.context, pass.num_rows, {&weights.attention_output.matrix}, false, pass.workspace.forms);
}

// Whether the output projection reads gated rows as they are, and not their norm, or heads without their padding.
bool ReadsAttended(const AttentionSpec& attention) {
  return attention.padded_head_dim() == attention.head_dim && !attention.output_norm.present;
}

// Of rows that are gated. has_input: they have their forms.
void AddGated(const LayerPass& pass, int64_t layer, const LayerWeights& weights, float* attended, const LinearInput& input,
              bool has_input) {
  const LayerSpec& spec = pass.spec.layers[static_cast<size_t>(layer)];
  float* values = Packed(pass, spec.attention, attended);
  if (!has_input) {
    const PlacedNorm norm{spec.attention.output_norm, weights.attention_output_norm};
    NormedInput(pass.context, norm, values, values, pass.num_rows, spec.attention.num_heads * spec.attention.head_dim, input);
  }
  AddToStream(pass, {.rows = {0, pass.num_rows},
                     .layer = weights.attention_output,
                     .values = values,
                     .input = input,
                     .norm = {spec.post_attention_norm, weights.post_attention_norm},
                     .residual_scale = spec.residual_scale});
}

}  // namespace

void AddAttention(const LayerPass& pass, int64_t layer, const LayerWeights& weights, const ProjectedHeads& heads, float* attended) {
  const GateArgs gate = GateOf(pass, pass.spec.layers[static_cast<size_t>(layer)].attention, heads, attended);
  if (gate.x != nullptr) Gate(pass.context, gate);
  AddGated(pass, layer, weights, attended, OutputInput(pass, weights), false);
}

TwoSidedRows SeenRows(const ForwardBatch& batch, int64_t window) {
  TwoSidedRows seen;
  for (const BatchSegment& segment : batch.segments) {
    const int64_t end = segment.base_len + segment.num_rows;
    for (int64_t position = segment.base_len; position < end; ++position) {
      seen.firsts.push_back(static_cast<int32_t>(window == 0 ? 0 : std::max<int64_t>(0, position - window + 1)));
      seen.lasts.push_back(static_cast<int32_t>((window == 0 ? end : std::min(end, position + window)) - 1));
    }
  }
  return seen;
}

void SeeRows(const LayerCache& cache, AttentionArgs* args) {
  args->positions = cache.batch.positions.data();
  if (cache.seen == nullptr) return;
  args->positions = cache.seen->lasts.data();
  args->firsts = cache.seen->firsts.data();
  args->window = 0;
}

void AttentionLayer(const LayerPass& pass, int64_t layer, const LayerWeights& weights, float* normed_at, const LayerCache& cache,
                    ForwardResult* result) {
  const AttentionSpec& attention = pass.spec.layers[static_cast<size_t>(layer)].attention;
  const HeadKinds kinds = attention.kv_donor < 0 ? HeadKinds::kAll : HeadKinds::kQueries;
  const ProjectedHeads heads = ProjectHeads(pass, layer, weights, normed_at, kinds);
  float* attended = Attended(pass, layer);
  const GateArgs gate = GateOf(pass, attention, heads, attended);
  if (pass.ranks != nullptr) {
    AttendOnRank(pass, layer, weights, heads, cache, gate, attended, result);
    return AddGated(pass, layer, weights, attended, OutputInput(pass, weights), false);
  }
  AttentionArgs args = AttentionOf(pass, layer, weights, heads, cache.kv, attended);
  args.segments = cache.segments;
  args.num_segments = cache.num_segments;
  SeeRows(cache, &args);
  const LinearInput input = OutputInput(pass, weights);
  const bool reads_attended = ReadsAttended(attention);
  const std::vector<int>& wanted = cache.batch.attention_layers;
  AttendStep(pass.context, {.heads = StepsOf(pass, layer, weights, heads),
                            .keeps_queries = std::ranges::find(wanted, static_cast<int>(layer) + 1) != wanted.end(),
                            .written = {.kv = cache.kv,
                                        .segments = cache.segments,
                                        .num_segments = cache.num_segments,
                                        .k = heads.num_keys > 0 ? heads.keys : nullptr,
                                        .v = heads.values,
                                        .stride = heads.stride},
                            .attention = args,
                            .bounds = cache.bounds,
                            .gate = gate,
                            .output = reads_attended ? input : LinearInput{}});
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (wanted[i] != layer + 1) continue;
    if (cache.bounds.bounds != nullptr) {
      const PickedRows picked(pass.context, args, cache.bounds);
      result->attention[i] = WantedWeights(pass.context, picked.args(), pass.num_rows, cache.batch.wanted_rows);
      continue;
    }
    result->attention[i] = WantedWeights(pass.context, args, pass.num_rows, cache.batch.wanted_rows);
  }
  AddGated(pass, layer, weights, attended, input, reads_attended);
}

}  // namespace llmi

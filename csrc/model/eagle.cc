#include "model/eagle.h"

#include <utility>

#include "kernels/dispatch/transfer.h"
#include "kernels/ops/embedding.h"
#include "kernels/ops/linear.h"
#include "kernels/ops/rope.h"
#include "kernels/ops/row_ops.h"
#include "kernels/ops/vocab.h"
#include "model/drafter_tensors.h"
#include "model/layer_pass.h"
#include "model/mlp_layer.h"

namespace llmi {
namespace {

// The rows of all queries that are run, in their order.
std::vector<int32_t> RunRows(const EagleRows& rows) {
  std::vector<int32_t> run;
  for (const EagleRows::Query& query : rows.queries) {
    for (const int32_t row : query.rows) {
      if (row >= 0) run.push_back(row);
    }
  }
  return run;
}

}  // namespace

uint64_t EagleWeights::num_bytes() const {
  return model.num_bytes() + from_embedding.matrix.num_bytes() + from_hidden.matrix.num_bytes() + head.num_bytes() +
         from_taps.matrix.num_bytes() + query.matrix.num_bytes() + key.matrix.num_bytes() + value.matrix.num_bytes();
}

EagleDecoder::EagleDecoder(ModelSpec spec, EagleWeights weights)
    : spec_(std::move(spec)), weights_(std::move(weights)), positions_(spec_) {}

const float* EagleDecoder::Forward(const KernelContext& context, const Decoder& target, const KvView& kv, const EagleRows& rows) {
  Fuse(context, target, rows);
  StoreKeysAndValues(context, kv, rows);
  if (rows.queries.empty()) return nullptr;
  RunQueries(context, kv, rows);
  return workspace_.stream.as<float>();
}

std::vector<int> EagleDecoder::TargetLayers(const Decoder& target) const {
  return is_eagle3() ? weights_.form.taps : std::vector<int>{static_cast<int>(target.spec().num_layers())};
}

void EagleDecoder::ReadTarget(const KernelContext& context, const Decoder& target, const std::vector<const float*>& streams, int64_t count,
                              float* out) {
  const int64_t hidden = spec_.hidden_size;
  if (is_eagle3()) {
    const auto num_taps = static_cast<int64_t>(streams.size());
    float* tapped = Floats(context, tapped_, count * num_taps * hidden);
    for (int64_t i = 0; i < count * num_taps; ++i) {
      const float* row = streams[static_cast<size_t>(i % num_taps)] + i / num_taps * hidden;
      CopyThere(context, tapped + i * hidden, row, FloatBytes(hidden));
    }
    return FromTaps(context, tapped, count, out);
  }
  CopyThere(context, out, streams[0], FloatBytes(count * hidden));
  target.FinalNorm(context, out, count);
}

void EagleDecoder::FromTaps(const KernelContext& context, float* tapped, int64_t count, float* out) {
  const int64_t hidden = spec_.hidden_size;
  const int64_t width = static_cast<int64_t>(weights_.form.taps.size()) * hidden;
  if (weights_.num_tap_norms > 0) {
    NormArgs args = RowNorm(spec_.layers[0].mlp_norm, weights_.tap_norm, tapped, tapped, count, width / weights_.num_tap_norms);
    args.x_stride = width;
    args.out_stride = width;
    args.num_groups = weights_.num_tap_norms;
    args.own_weights = true;
    Norm(context, args);
  }
  Add(context, {&weights_.from_taps}, tapped, count, out, hidden, false);
}

float* EagleDecoder::Embedded(const KernelContext& context, const Decoder& target, const EagleRows& rows) {
  const int64_t num_rows = rows.num_rows();
  float* embedded = Floats(context, embedded_, num_rows * spec_.hidden_size);
  if (weights_.model.embedding.num_bytes() > 0) {
    Embedding(context, weights_.model.embedding.view(), rows.token_ids.data(), num_rows, 1.0f, embedded);
  } else {
    // EAGLE-3 is trained on the table's rows as they are.
    target.Embed(context, rows.token_ids, is_eagle3() ? 1.0 : target.spec().embedding.scale, embedded);
  }
  if (is_eagle3()) {
    Norm(context, RowNorm(spec_.layers[0].mlp_norm, weights_.embedding_norm, embedded, embedded, num_rows, spec_.hidden_size));
  }
  return embedded;
}

// EAGLE-1: the stream begins with fc([embedding; hidden]), which attention
// reads as it is. EAGLE-3: with the hidden row, which it reads normed.
void EagleDecoder::Fuse(const KernelContext& context, const Decoder& target, const EagleRows& rows) {
  const int64_t hidden = spec_.hidden_size;
  const int64_t num_rows = rows.num_rows();
  const float* embedded = Embedded(context, target, rows);
  float* begun = Floats(context, begun_, num_rows * hidden);
  float* read = Floats(context, read_, num_rows * hidden);
  if (is_eagle3()) {
    Norm(context, RowNorm(spec_.layers[0].mlp_norm, weights_.hidden_norm, rows.hidden, read, num_rows, hidden));
    CopyThere(context, begun, weights_.form.norm_before_residual ? read : rows.hidden, FloatBytes(num_rows * hidden));
    return;
  }
  Add(context, {&weights_.from_embedding}, embedded, num_rows, begun, hidden, false);
  Add(context, {&weights_.from_hidden}, rows.hidden, num_rows, begun, hidden, true);
  CopyThere(context, read, begun, FloatBytes(num_rows * hidden));
}

// out [num_rows, stride] = or += the layers of x, side by side.
void EagleDecoder::Add(const KernelContext& context, Layers layers, const float* x, int64_t num_rows, float* out, int64_t stride,
                       bool accumulate) {
  const PackedMatrix* first = &(*layers.begin())->matrix;
  const PackedMatrix* last = &(*(layers.end() - 1))->matrix;
  const LinearInput input = MakeInput(context, num_rows, {first, last}, true, workspace_.forms);
  ConvertInput(context, x, num_rows, first->view().num_cols, input);
  Linear(context, ArgsOf(PartsOf(layers), x, input, num_rows, out, stride, accumulate));
}

void EagleDecoder::Project(const KernelContext& context, Layers layers, Layers embedding_layers, const EagleInputs& inputs,
                           int64_t num_rows, float* out) {
  int64_t width = 0;
  for (const LinearWeights* layer : layers) width += layer->matrix.view().num_rows;
  Add(context, layers, inputs.hidden, num_rows, out, width, false);
  if (is_eagle3()) Add(context, embedding_layers, inputs.embedded, num_rows, out, width, true);
}

void EagleDecoder::StoreKeysAndValues(const KernelContext& context, const KvView& kv, const EagleRows& rows) {
  const LayerWeights& weights = weights_.model.layers[0];
  const int64_t num_rows = rows.num_rows();
  const int64_t width = spec_.num_kv_heads * spec_.padded_head_dim();
  float* keys = Floats(context, keys_, num_rows * 2 * width);
  const EagleInputs inputs = {read_.as<float>(), embedded_.as<float>()};
  Project(context, {&weights.key, &weights.value}, {&weights_.key, &weights_.value}, inputs, num_rows, keys);
  NormHeads(context, spec_.layers[0].attention.norms.key, weights.key_norm, keys, 2 * width, num_rows, spec_.num_kv_heads);
  positions_.Compute(context, rows.positions, workspace_.position_values);
  Rotate(context, keys, 2 * width, num_rows, spec_.num_kv_heads);
  KvWrite(context, {.kv = kv,
                    .segments = rows.segments.data(),
                    .num_segments = static_cast<int64_t>(rows.segments.size()),
                    .k = keys,
                    .v = keys + width,
                    .stride = 2 * width});
}

// Norms each of the first heads of each row, where the layer does.
void EagleDecoder::NormHeads(const KernelContext& context, const NormSpec& norm, const NormWeights& weights, float* heads, int64_t stride,
                             int64_t num_rows, int64_t num_heads) const {
  if (!norm.present) return;
  NormArgs args = RowNorm(norm, weights, heads, heads, num_rows, spec_.head_dim);
  args.x_stride = stride;
  args.out_stride = stride;
  args.num_groups = num_heads;
  args.group_stride = spec_.padded_head_dim();
  Norm(context, args);
}

// Rotates the first heads of each row by the positions that were computed last.
void EagleDecoder::Rotate(const KernelContext& context, float* x, int64_t stride, int64_t num_rows, int64_t num_heads) const {
  Rope(context, {.x = x,
                 .x_stride = stride,
                 .num_rows = num_rows,
                 .num_heads = num_heads,
                 .head_dim = spec_.head_dim,
                 .head_stride = spec_.padded_head_dim(),
                 .rotary_dim = positions_.rotary_dim(0),
                 .cosine = positions_.cosine(0),
                 .sine = positions_.sine(0)});
}

void EagleDecoder::RunQueries(const KernelContext& context, const KvView& kv, const EagleRows& rows) {
  const LayerSpec& spec = spec_.layers[0];
  const LayerWeights& weights = weights_.model.layers[0];
  const int64_t hidden = spec_.hidden_size;
  const int64_t width = spec_.num_heads * spec_.padded_head_dim();
  const std::vector<int32_t> run = RunRows(rows);
  std::vector<int32_t> positions;
  for (const int32_t row : run) positions.push_back(rows.positions[static_cast<size_t>(row)]);
  const auto count = static_cast<int64_t>(run.size());
  float* x = Floats(context, workspace_.stream, count * hidden);
  float* queries = Floats(context, workspace_.projected, count * width);
  float* attended = Floats(context, workspace_.attended, count * width);
  const auto gather = [&](const AlignedBuffer& from, float* to) {
    for (int64_t i = 0; i < count; ++i) {
      CopyThere(context, to + i * hidden, from.as<float>() + run[static_cast<size_t>(i)] * hidden, FloatBytes(hidden));
    }
    return to;
  };
  gather(begun_, x);
  const EagleInputs inputs = {gather(read_, Floats(context, run_read_, count * hidden)),
                              gather(embedded_, Floats(context, run_embedded_, count * hidden))};
  Project(context, {&weights.query}, {&weights_.query}, inputs, count, queries);
  NormHeads(context, spec.attention.norms.query, weights.query_norm, queries, width, count, spec_.num_heads);
  positions_.Compute(context, positions, workspace_.position_values);
  Rotate(context, queries, width, count, spec_.num_heads);
  Attend(context, kv, rows, queries, attended);
  float* values = attended;
  if (spec_.padded_head_dim() != spec_.head_dim) {
    values = Floats(context, workspace_.packed, count * spec_.num_heads * spec_.head_dim);
    PackHeads(context, attended, count, spec_.num_heads, spec_.padded_head_dim(), spec_.head_dim, values);
  }
  const LayerPass pass = {.context = context,
                          .spec = spec_,
                          .positions = positions_,
                          .workspace = workspace_,
                          .num_rows = count,
                          .x = x,
                          .normed = Floats(context, workspace_.normed, count * hidden),
                          .kept = nullptr};
  const LinearInput output_input = MakeInput(context, count, {&weights.attention_output.matrix}, false, workspace_.forms);
  ConvertInput(context, values, count, spec_.num_heads * spec_.head_dim, output_input);
  AddToStream(pass, {.rows = {0, count},
                     .layer = weights.attention_output,
                     .values = values,
                     .input = output_input,
                     .norm = {spec.post_attention_norm, weights.post_attention_norm},
                     .residual_scale = 1.0});
  MlpLayer(pass, spec, weights);
  if (weights_.form.norm_output) Norm(context, RowNorm(spec_.final_norm, weights_.model.final_norm, x, x, count, hidden));
}

// One call for each sequence: a window of as many positions as the row's own
// hides slot 0, which holds nothing.
void EagleDecoder::Attend(const KernelContext& context, const KvView& kv, const EagleRows& rows, const float* queries, float* attended) {
  const int64_t width = spec_.num_heads * spec_.padded_head_dim();
  const auto row_bytes = FloatBytes(width);
  int64_t place = 0;  // of the query's first row that is run
  for (const EagleRows::Query& query : rows.queries) {
    const int64_t num_rows = query.segment.num_rows;
    const bool is_tree = num_rows > 1;  // some of its rows are not run: their
                                        // values are undefined, and not used
    const float* q = queries + place * width;
    float* out = attended + place * width;
    if (is_tree) {
      float* all = Floats(context, tree_queries_, num_rows * width);
      int64_t next = place;
      for (int64_t i = 0; i < num_rows; ++i) {
        const bool runs = query.rows[static_cast<size_t>(i)] >= 0;
        CopyThere(context, all + i * width, queries + (runs ? next++ : place) * width, row_bytes);
      }
      q = all;
      out = Floats(context, tree_values_, num_rows * width);
    }
    PagedAttention(context, {.kv = kv,
                             .segments = &query.segment,
                             .num_segments = 1,
                             .positions = query.positions.data(),
                             .q = q,
                             .q_stride = width,
                             .num_heads = spec_.num_heads,
                             .scale = static_cast<float>(spec_.layers[0].attention.scale),
                             .window = query.positions.back(),
                             .out = out,
                             .out_stride = width});
    for (int64_t i = 0; i < num_rows; ++i) {
      if (query.rows[static_cast<size_t>(i)] < 0) continue;
      if (is_tree) CopyThere(context, attended + place * width, out + i * width, row_bytes);
      ++place;
    }
  }
}

void EagleDecoder::Logits(const KernelContext& context, Decoder& target, const float* outputs, int64_t num_rows,
                          std::vector<float>* logits) {
  const float* read = outputs;
  if (is_eagle3() && !weights_.form.norm_output) {
    float* normed = Floats(context, workspace_.normed, num_rows * spec_.hidden_size);
    Norm(context, RowNorm(spec_.final_norm, weights_.model.final_norm, outputs, normed, num_rows, spec_.hidden_size));
    read = normed;
  }
  if (weights_.head.num_bytes() == 0) {
    logits->resize(static_cast<size_t>(num_rows * target.spec().vocab_size));
    return target.LmHead(context, read, num_rows, logits->data());
  }
  HeadLogits(context, weights_.head, is_eagle3() ? HeadSpec{} : target.spec().head, read, num_rows, {workspace_.forms, workspace_.logits},
             logits);
}

}  // namespace llmi

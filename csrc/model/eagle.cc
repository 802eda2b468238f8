#include "model/eagle.h"

#include <utility>

#include "kernels/dispatch/transfer.h"
#include "kernels/ops/embedding.h"
#include "kernels/ops/linear.h"
#include "model/drafter_tensors.h"
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
  Add(context, weights_.from_taps, tapped, count, out, false);
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

// EAGLE-1: the stream begins with fc([embedding; hidden row]). EAGLE-3: with the hidden row.
void EagleDecoder::Fuse(const KernelContext& context, const Decoder& target, const EagleRows& rows) {
  const int64_t hidden = spec_.hidden_size;
  const int64_t num_rows = rows.num_rows();
  const float* embedded = Embedded(context, target, rows);
  float* begun = Floats(context, begun_, num_rows * hidden);
  if (!is_eagle3()) {
    Add(context, weights_.from_embedding, embedded, num_rows, begun, false);
    Add(context, weights_.from_hidden, rows.hidden, num_rows, begun, true);
  } else if (!weights_.stream_norm.weight.empty()) {
    Norm(context, RowNorm(spec_.layers[0].mlp_norm, weights_.stream_norm, rows.hidden, begun, num_rows, hidden));
  } else {
    CopyThere(context, begun, rows.hidden, FloatBytes(num_rows * hidden));
  }
}

// out [num_rows, hidden] = or += the layer of x.
void EagleDecoder::Add(const KernelContext& context, const LinearWeights& layer, const float* x, int64_t num_rows, float* out,
                       bool accumulate) {
  const LinearInput input = MakeInput(context, num_rows, {&layer.matrix}, true, workspace_.forms);
  ConvertInput(context, x, num_rows, layer.matrix.view().num_cols, input);
  Linear(context, ArgsOf(PartsOf({&layer}), x, input, num_rows, out, spec_.hidden_size, accumulate));
}

LayerPass EagleDecoder::Begin(const KernelContext& context, const std::vector<int32_t>& positions, float* x) {
  const LayerPass pass = BeginPass(context, spec_, positions, positions_, workspace_, x);
  if (context.device != nullptr) positions_.Read(context, context.device->PlaceIds(positions.data(), pass.num_rows));
  return pass;
}

ProjectedHeads EagleDecoder::Project(const LayerPass& pass, HeadKinds kinds, const AlignedBuffer& embedded) {
  const SideInput side = {embedded.as<float>(), weights_.query, weights_.key, weights_.value};
  const LayerWeights& weights = weights_.model.layers[0];
  const ProjectedHeads heads = ProjectHeads(pass, 0, weights, pass.normed, kinds, is_eagle3() ? &side : nullptr);
  PrepareHeads(pass.context, StepsOf(pass, 0, weights, heads));
  return heads;
}

void EagleDecoder::StoreKeysAndValues(const KernelContext& context, const KvView& kv, const EagleRows& rows) {
  const LayerPass pass = Begin(context, rows.positions, begun_.as<float>());
  const ProjectedHeads heads = Project(pass, HeadKinds::kKeysAndValues, embedded_);
  KvWrite(context, {.kv = kv,
                    .segments = rows.segments.data(),
                    .num_segments = static_cast<int64_t>(rows.segments.size()),
                    .k = heads.keys,
                    .v = heads.values,
                    .stride = heads.stride});
}

void EagleDecoder::RunQueries(const KernelContext& context, const KvView& kv, const EagleRows& rows) {
  const LayerWeights& weights = weights_.model.layers[0];
  const int64_t hidden = spec_.hidden_size;
  const std::vector<int32_t> run = RunRows(rows);
  const auto count = static_cast<int64_t>(run.size());
  std::vector<int32_t> positions;
  for (const int32_t row : run) positions.push_back(rows.positions[static_cast<size_t>(row)]);
  const auto gather = [&](const AlignedBuffer& from, AlignedBuffer& to) {
    float* gathered = Floats(context, to, count * hidden);
    for (int64_t i = 0; i < count; ++i) {
      CopyThere(context, gathered + i * hidden, from.as<float>() + run[static_cast<size_t>(i)] * hidden, FloatBytes(hidden));
    }
    return gathered;
  };
  float* x = gather(begun_, workspace_.stream);
  if (is_eagle3()) gather(embedded_, run_embedded_);
  const LayerPass pass = Begin(context, positions, x);
  const ProjectedHeads heads = Project(pass, HeadKinds::kQueries, run_embedded_);
  float* attended = Attended(pass, 0);
  Attend(pass, kv, rows, heads, attended);
  AddAttention(pass, 0, weights, heads, attended);
  MlpLayer(pass, spec_.layers[0], weights);
  if (weights_.form.norm_output) Norm(context, RowNorm(spec_.final_norm, weights_.model.final_norm, x, x, count, hidden));
}

// One call for each sequence: a window of as many positions as the row's own hides slot 0, which holds nothing.
void EagleDecoder::Attend(const LayerPass& pass, const KvView& kv, const EagleRows& rows, const ProjectedHeads& heads, float* attended) {
  const KernelContext& context = pass.context;
  AttentionArgs args = AttentionOf(pass, 0, weights_.model.layers[0], heads, kv, attended);
  args.num_segments = 1;
  const int64_t width = args.out_stride;
  int64_t place = 0;  // of the query's first row that is run
  for (const EagleRows::Query& query : rows.queries) {
    const int64_t num_rows = query.segment.num_rows;
    const bool is_tree = num_rows > 1;  // some of its rows are not run: their values are undefined, and not used
    args.segments = &query.segment;
    args.positions = query.positions.data();
    args.window = query.positions.back();
    args.q = heads.queries + place * heads.stride;
    args.q_stride = heads.stride;
    args.out = attended + place * width;
    if (is_tree) {
      float* all = Floats(context, tree_queries_, num_rows * width);
      int64_t next = place;
      for (int64_t i = 0; i < num_rows; ++i) {
        const bool runs = query.rows[static_cast<size_t>(i)] >= 0;
        CopyThere(context, all + i * width, heads.queries + (runs ? next++ : place) * heads.stride, FloatBytes(width));
      }
      args.q = all;
      args.q_stride = width;
      args.out = Floats(context, tree_values_, num_rows * width);
    }
    PagedAttention(context, args);
    for (int64_t i = 0; i < num_rows; ++i) {
      if (query.rows[static_cast<size_t>(i)] < 0) continue;
      if (is_tree) CopyThere(context, attended + place * width, args.out + i * width, FloatBytes(width));
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
  HeadLogits(context, weights_.head, is_eagle3() ? HeadSpec{} : target.spec().head, target, read, num_rows,
             {workspace_.forms, workspace_.logits}, logits);
}

}  // namespace llmi

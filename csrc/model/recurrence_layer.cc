#include "model/recurrence_layer.h"

#include <limits>

#include "kernels/ops/row_ops.h"
#include "model/rank_mixers.h"
#include "model/short_conv_layer.h"

namespace llmi {
namespace {

float* Project(const LayerPass& pass, int64_t layer, const LayerWeights& weights, float* normed_at) {
  const MixerWeights& mixer = weights.recurrence;
  if (pass.spec.layers[static_cast<size_t>(layer)].mixer == MixerKind::kGatedDelta) {
    return ProjectMixer(
        pass, layer, weights, normed_at, PartsOf({&mixer.query, &mixer.key, &mixer.value, &mixer.time, &mixer.write, &mixer.gate}),
        {&mixer.query.matrix, &mixer.key.matrix, &mixer.value.matrix, &mixer.time.matrix, &mixer.write.matrix, &mixer.gate.matrix});
  }
  return ProjectMixer(pass, layer, weights, normed_at, PartsOf({&mixer.value, &mixer.key, &mixer.query, &mixer.time, &mixer.gate}),
                      {&mixer.value.matrix, &mixer.key.matrix, &mixer.query.matrix, &mixer.time.matrix, &mixer.gate.matrix});
}

// mixed: rows of `size` values, those of the rank's heads or of all.
void NormHeads(const LayerPass& pass, const RecurrenceSpec& spec, const RecurrenceShape& shape, const NormWeights& weights, int64_t size,
               float* mixed) {
  if (!spec.norm.present) return;
  const int64_t groups = shape.is_delta ? shape.num_heads : spec.norm_groups;
  NormArgs args = RowNorm(spec.norm, weights, mixed, mixed, pass.num_rows, size / groups);
  args.x_stride = args.out_stride = size;
  args.num_groups = groups;
  args.own_weights = !shape.is_delta;
  Norm(pass.context, args);
}

// What the rank's heads make of the rows, gated.
float* MixedHeads(const LayerPass& pass, int64_t layer, const LayerWeights& weights, float* projected, const StepStates& states) {
  const LayerSpec& layer_spec = pass.spec.layers[static_cast<size_t>(layer)];
  const RecurrenceSpec& spec = layer_spec.recurrence;
  const RecurrenceShape shape = ShapeOf(layer_spec);
  const int64_t stride = RecurrenceProjectedSize(shape);
  const int64_t size = shape.value_floats();
  const float* time = projected + shape.channels();
  const float* gate = time + (shape.is_delta ? 2 : 1) * shape.num_heads;
  float* inputs = projected + stride - shape.input_floats();
  StateRows conv_rows = states.Rows(layer, 0);
  conv_rows.inputs = projected;
  conv_rows.input_floats = shape.channels();
  conv_rows.input_stride = stride;
  conv_rows.out = inputs;
  conv_rows.out_stride = stride;
  Conv(pass.context,
       {.channels = shape.channels(),
        .length = spec.conv.length,
        .weight = weights.conv_weight.data(),
        .bias = weights.conv_bias.data(),
        .activation = ConvActivation::kSilu},
       conv_rows);
  float* mixed = Floats(pass.context, pass.workspace.attended, pass.num_rows * size);
  StateRows rows = states.Rows(layer, 1);
  rows.out = mixed;
  rows.out_stride = size;
  const MixerWeights& mixer = weights.recurrence;
  Recurrence(pass.context,
             {.shape = shape,
              .inputs = inputs,
              .input_stride = stride,
              .num_rows = pass.num_rows,
              .time = time,
              .write = shape.is_delta ? time + shape.num_heads : nullptr,
              .time_stride = stride,
              .time_bias = mixer.time_bias.data(),
              .decay = mixer.decay.data(),
              .skip = mixer.skip.data(),
              .least_step = static_cast<float>(spec.least_step),
              .most_step = spec.most_step > 0 ? static_cast<float>(spec.most_step) : std::numeric_limits<float>::infinity()},
             rows);
  if (shape.is_delta) NormHeads(pass, spec, shape, mixer.norm, size, mixed);
  GateRows(pass.context, {gate, stride}, pass.num_rows, size, mixed);
  return mixed;
}

}  // namespace

RecurrenceShape ShapeOf(const LayerSpec& layer) {
  const RecurrenceSpec& spec = layer.recurrence;
  return {layer.mixer == MixerKind::kGatedDelta, spec.num_heads, spec.num_groups, spec.tiled_groups, spec.key_size, spec.value_size};
}

int64_t RecurrenceProjectedSize(const RecurrenceShape& shape) {
  return shape.channels() + (shape.is_delta ? 2 : 1) * shape.num_heads + shape.value_floats() + shape.input_floats();
}

void RecurrenceLayer(const LayerPass& pass, int64_t layer, const LayerWeights& weights, float* normed_at, const StepStates& states) {
  const LayerSpec& layer_spec = pass.spec.layers[static_cast<size_t>(layer)];
  const RecurrenceShape shape = ShapeOf(layer_spec);
  float* projected = Project(pass, layer, weights, normed_at);
  float* mixed = shape.num_heads == 0 ? nullptr : MixedHeads(pass, layer, weights, projected, states);
  if (pass.ranks != nullptr) mixed = GatherMixed(pass, layer, mixed);
  const int64_t size = weights.mixer_output.matrix.view().num_cols;
  if (!shape.is_delta) NormHeads(pass, layer_spec.recurrence, shape, weights.recurrence.norm, size, mixed);
  AddMixed(pass, layer, weights, mixed);
}

}  // namespace llmi

#include "model/short_conv_layer.h"

#include <optional>

#include "kernels/ops/linear_step.h"
#include "kernels/ops/row_ops.h"

namespace llmi {

float* ProjectMixer(const LayerPass& pass, int64_t layer, const LayerWeights& weights, float* normed_at,
                    const std::vector<LinearPart>& parts, std::initializer_list<const PackedMatrix*> readers) {
  const LayerSpec& spec = pass.spec.layers[static_cast<size_t>(layer)];
  const int64_t size = MixerProjectedSize(pass.spec, spec);
  const int64_t hidden = pass.spec.hidden_size;
  float* projected = Floats(pass.context, pass.workspace.projected, pass.num_rows * size);
  const LinearInput input = MakeInput(pass.context, pass.num_rows, readers, true, pass.workspace.forms);
  std::optional<NormArgs> norm;  // of rows that only this layer reads
  const bool at_once = spec.attention_norm.present && normed_at != pass.kept;
  if (at_once) norm = RowNorm(spec.attention_norm, weights.attention_norm, pass.x, normed_at, pass.num_rows, hidden);
  const PlacedNorm placed{spec.attention_norm, weights.attention_norm};
  const float* x = at_once ? normed_at : NormedInput(pass.context, placed, pass.x, normed_at, pass.num_rows, hidden, input);
  RunLinearStep(
      pass.context,
      {.norm = norm ? &*norm : nullptr, .input = input, .layers = ArgsOf(parts, x, input, pass.num_rows, projected, size, false)});
  return projected;
}

void AddMixed(const LayerPass& pass, int64_t layer, const LayerWeights& weights, const float* mixed) {
  const LayerSpec& spec = pass.spec.layers[static_cast<size_t>(layer)];
  const LinearInput input = MakeInput(pass.context, pass.num_rows, {&weights.mixer_output.matrix}, false, pass.workspace.forms);
  ConvertInput(pass.context, mixed, pass.num_rows, weights.mixer_output.matrix.view().num_cols, input);
  AddToStream(pass, {.rows = {0, pass.num_rows},
                     .layer = weights.mixer_output,
                     .values = mixed,
                     .input = input,
                     .norm = {spec.post_attention_norm, weights.post_attention_norm},
                     .residual_scale = spec.residual_scale});
}

void ShortConvLayer(const LayerPass& pass, int64_t layer, const LayerWeights& weights, float* normed_at, const StepStates& states) {
  const ConvSpec& conv = pass.spec.layers[static_cast<size_t>(layer)].short_conv.conv;
  const int64_t hidden = pass.spec.hidden_size;
  const int64_t stride = 3 * hidden;
  float* b = ProjectMixer(pass, layer, weights, normed_at, PartsOf({&weights.mixer_input}), {&weights.mixer_input.matrix});
  const float* c = b + hidden;
  float* x = b + 2 * hidden;
  MultiplyRows(pass.context, {b, stride}, {x, stride}, pass.num_rows, hidden, x, stride);
  StateRows rows = states.Rows(layer, 0);
  rows.inputs = x;
  rows.input_floats = hidden;
  rows.input_stride = stride;
  rows.out = b;
  rows.out_stride = stride;
  Conv(pass.context, {.channels = hidden, .length = conv.length, .weight = weights.conv_weight.data(), .bias = weights.conv_bias.data()},
       rows);
  float* mixed = Floats(pass.context, pass.workspace.attended, pass.num_rows * hidden);
  MultiplyRows(pass.context, {c, stride}, {b, stride}, pass.num_rows, hidden, mixed, hidden);
  AddMixed(pass, layer, weights, mixed);
}

}  // namespace llmi

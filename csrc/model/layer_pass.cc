#include "model/layer_pass.h"

#include <algorithm>

#include "kernels/dispatch/device.h"
#include "kernels/ops/row_ops.h"
#include "model/ranks.h"

namespace llmi {

LayerPass BeginPass(const KernelContext& context, const ModelSpec& spec, const std::vector<int32_t>& positions, PositionValues& values,
                    Workspace& workspace, float* x) {
  const auto num_rows = static_cast<int64_t>(positions.size());
  const int64_t count = num_rows * spec.hidden_size;
  const bool keeps = std::ranges::any_of(spec.layers, [](const LayerSpec& layer) { return layer.order == LayerOrder::kParallel; });
  values.Begin(context, positions, workspace.position_values);
  return {.context = context,
          .spec = spec,
          .positions = values,
          .workspace = workspace,
          .num_rows = num_rows,
          .x = x,
          .normed = Floats(context, workspace.normed, count),
          .kept = keeps ? Floats(context, workspace.kept, count) : nullptr,
          .layer_rows = Floats(context, workspace.layer_rows, num_rows * spec.layer_embedding.num_places * spec.layer_embedding.size),
          .ranks = nullptr};
}

LinearInput MakeInput(const KernelContext& context, int64_t num_rows, std::initializer_list<const PackedMatrix*> readers, bool fine,
                      FormsRoom& room) {
  LinearInput input;
  const int64_t num_cols = (*readers.begin())->view().num_cols;
  const int64_t num_values = num_rows * num_cols;
  const auto any = [&](const auto& wanted) {
    return std::any_of(readers.begin(), readers.end(), [&](const PackedMatrix* matrix) { return wanted(matrix->view().type); });
  };
  if (any(IsQuantizedPacked)) {
    const bool wide = context.wide_activations;
    room.codes.Reserve(static_cast<size_t>(NumCodeBytes(num_values, wide)), "activations", context.device);
    auto* codes = room.codes.as<int8_t>();
    float* scales = Floats(context, room.scales, ScaleFloats(num_values));
    auto* half_sums = reinterpret_cast<int32_t*>(scales + num_values / 32 * 3);
    input.quantized = {num_cols, codes, scales, scales + num_values / 16, half_sums, fine && !wide, wide ? codes + num_values : nullptr};
  }
  if (context.bf16_dots && any([](PackedType type) { return type == PackedType::kBF16; })) {
    room.rounded.Reserve(static_cast<size_t>(num_values) * sizeof(uint16_t), "activations", nullptr);
    input.rounded = room.rounded.as<uint16_t>();
  }
  return input;
}

std::vector<LinearPart> PartsOf(std::initializer_list<const LinearWeights*> layers) {
  std::vector<LinearPart> parts;
  int64_t column = 0;
  for (const LinearWeights* layer : layers) {
    const PackedView view = layer->matrix.view();
    parts.push_back({.weights = view, .bias = layer->bias_data(), .out_column = column});
    column += view.num_rows;
  }
  return parts;
}

LinearArgs ArgsOf(const std::vector<LinearPart>& parts, const float* x, const LinearInput& input, int64_t num_rows, float* out,
                  int64_t out_stride, bool accumulate) {
  return {.parts = parts.data(),
          .num_parts = static_cast<int64_t>(parts.size()),
          .num_rows = num_rows,
          .x = x,
          .x_stride = parts[0].weights.num_cols,
          .quantized = input.quantized,
          .out = out,
          .out_stride = out_stride,
          .accumulate = accumulate,
          .x_bf16 = input.rounded};
}

NormArgs RowNorm(const NormSpec& norm, const NormWeights& weights, const float* x, float* out, int64_t num_rows, int64_t size) {
  return {.kind = norm.kind,
          .x = x,
          .x_stride = size,
          .out = out,
          .out_stride = size,
          .num_rows = num_rows,
          .size = size,
          .weight = weights.weight.data(),
          .bias = weights.bias.data(),
          .eps = static_cast<float>(norm.eps)};
}

const float* NormedInput(const KernelContext& context, const PlacedNorm& norm, const float* x, float* out, int64_t num_rows, int64_t size,
                         const LinearInput& input) {
  if (!norm.spec.present) {
    ConvertInput(context, x, num_rows, size, input);
    return x;
  }
  Norm(context, RowNorm(norm.spec, norm.weights, x, out, num_rows, size), input);
  return out;
}

void AddToStream(const LayerPass& pass, const ResidualArgs& args) {
  const int64_t hidden = pass.spec.hidden_size;
  const int64_t num_rows = args.rows.count;
  float* x = pass.x + args.rows.begin * hidden;
  float* added = pass.normed + args.rows.begin * hidden;
  const bool at_once = args.residual_scale == 1.0 && !args.norm.spec.present;
  float* out = at_once ? x : added;
  Linear(pass.context,
         ArgsOf(PartsOf({&args.layer}), args.values, args.input, num_rows, out + args.layer.matrix.first_row(), hidden, at_once));
  if (pass.ranks != nullptr) pass.ranks->GatherHidden(out, num_rows, hidden);
  if (!at_once) AddRowsToStream(pass, args.rows, added, args.norm, args.residual_scale);
}

void AddRowsToStream(const LayerPass& pass, const RowRange& rows, float* added, const PlacedNorm& norm, double residual_scale) {
  const int64_t hidden = pass.spec.hidden_size;
  float* x = pass.x + rows.begin * hidden;
  const bool scaled = residual_scale != 1.0;
  if (norm.spec.present) {
    NormArgs args = RowNorm(norm.spec, norm.weights, added, scaled ? added : x, rows.count, hidden);
    args.accumulate = !scaled;
    Norm(pass.context, args);
    if (!scaled) return;
  }
  AddScaled(pass.context, added, rows.count * hidden, static_cast<float>(residual_scale), x);
}

}  // namespace llmi

#include "model/mlp_layer.h"

#include <algorithm>
#include <iterator>

#include "kernels/ops/linear_step.h"
#include "model/ranks.h"

namespace llmi {
namespace {

// out [rows, rows of up here] = act(gate x) * (up x), or act(up x), with the forms of it that `wanted` names.
void ActivatedRows(const LayerPass& pass, const MlpSpec& mlp, const MlpWeights& weights, const MlpInput& input, int64_t num_rows,
                   float* out, const LinearInput& wanted) {
  const int64_t size = weights.up.matrix.view().num_rows;
  const int64_t width = mlp.gated ? 2 * size : size;
  float* gate_up = Floats(pass.context, pass.workspace.gate_up, num_rows * width);
  const std::vector<LinearPart> parts = mlp.gated ? PartsOf({&weights.gate, &weights.up}) : PartsOf({&weights.up});
  const LinearArgs layers = ArgsOf(parts, input.x, input.forms, num_rows, gate_up, width, false);
  ActivationArgs activation = ActivationOf(mlp, weights, gate_up, num_rows, out);
  activation.size = size;
  RunLinearStep(pass.context, {.norm = input.norm ? &*input.norm : nullptr,
                               .input = input.forms,
                               .layers = layers,
                               .activation = mlp.gated ? &activation : nullptr,
                               .forms = wanted});
  if (!mlp.gated) Activate(pass.context, activation, wanted);
}

// The same of all rows of up, [rows, size], on one of several ranks.
void GatherActivated(const LayerPass& pass, const MlpSpec& mlp, const MlpWeights& weights, const MlpInput& input, int64_t num_rows,
                     float* out) {
  const PackedMatrix& up = weights.up.matrix;
  if (const int64_t width = up.view().num_rows; width > 0) {
    float* own = Floats(pass.context, pass.workspace.own, num_rows * width);
    ActivatedRows(pass, mlp, weights, input, num_rows, own, {});
    CopyColumns(pass.context, own, width, num_rows, width, out + up.first_row(), mlp.size);
  }
  pass.ranks->GatherColumns(out, num_rows, mlp.size, [&](int rank) { return pass.ranks->plan().Inner(mlp.size, rank); });
}

MlpInput PlanMlpRows(const LayerPass& pass, const LayerSpec& spec, const LayerWeights& weights, const RowRange& rows,
                     std::initializer_list<const PackedMatrix*> readers) {
  const int64_t hidden = pass.spec.hidden_size;
  const LinearInput forms = MakeInput(pass.context, rows.count, readers, false, pass.workspace.forms);
  if (spec.order == LayerOrder::kParallel) {
    const float* kept = pass.kept + rows.begin * hidden;
    ConvertInput(pass.context, kept, rows.count, hidden, forms);
    return {kept, forms};
  }
  const float* x = pass.x + rows.begin * hidden;
  float* normed = pass.normed + rows.begin * hidden;
  if (spec.mlp_norm.present) return {normed, forms, RowNorm(spec.mlp_norm, weights.mlp_norm, x, normed, rows.count, hidden)};
  ConvertInput(pass.context, x, rows.count, hidden, forms);
  return {x, forms};
}

}  // namespace

ActivationArgs ActivationOf(const MlpSpec& mlp, const MlpWeights& weights, const float* x, int64_t num_rows, float* out) {
  ActivationArgs args = {.activation = mlp.activation, .gated = mlp.gated, .x = x, .num_rows = num_rows, .size = mlp.size, .out = out};
  std::copy(std::begin(weights.activation_parameters), std::end(weights.activation_parameters), std::begin(args.parameters));
  return args;
}

MlpInput ReadMlpRows(const LayerPass& pass, const LayerSpec& spec, const LayerWeights& weights, const RowRange& rows,
                     std::initializer_list<const PackedMatrix*> readers) {
  const MlpInput input = PlanMlpRows(pass, spec, weights, rows, readers);
  if (input.norm) Norm(pass.context, *input.norm, input.forms);
  return {input.x, input.forms};
}

MlpInput ReadNormedRows(const LayerPass& pass, const PlacedNorm& norm, const RowRange& rows,
                        std::initializer_list<const PackedMatrix*> readers) {
  const int64_t hidden = pass.spec.hidden_size;
  const LinearInput forms = MakeInput(pass.context, rows.count, readers, false, pass.workspace.forms);
  const float* x = pass.x + rows.begin * hidden;
  return {NormedInput(pass.context, norm, x, pass.normed + rows.begin * hidden, rows.count, hidden, forms), forms};
}

MlpInner InnerRows(const LayerPass& pass, const MlpSpec& mlp, const MlpWeights& weights, const MlpInput& input, int64_t num_rows) {
  float* activated = Floats(pass.context, pass.workspace.activated, num_rows * mlp.size);
  const LinearInput forms = MakeInput(pass.context, num_rows, {&weights.down.matrix}, false, pass.workspace.activated_forms);
  if (pass.ranks != nullptr) {
    GatherActivated(pass, mlp, weights, input, num_rows, activated);
    NormedInput(pass.context, {mlp.inner_norm, weights.inner_norm}, activated, activated, num_rows, mlp.size, forms);
    return {activated, forms};
  }
  ActivatedRows(pass, mlp, weights, input, num_rows, activated, mlp.inner_norm.present ? LinearInput{} : forms);
  if (mlp.inner_norm.present) {
    Norm(pass.context, RowNorm(mlp.inner_norm, weights.inner_norm, activated, activated, num_rows, mlp.size), forms);
  }
  return {activated, forms};
}

void MlpLayer(const LayerPass& pass, const LayerSpec& spec, const LayerWeights& weights) {
  const MlpWeights& mlp = weights.mlp;
  const int64_t most_rows = MostMlpRows(pass.context.device != nullptr);
  for (int64_t begin = 0; begin < pass.num_rows; begin += most_rows) {
    const RowRange rows{begin, std::min(most_rows, pass.num_rows - begin)};
    const MlpInput input = PlanMlpRows(pass, spec, weights, rows, {&FirstMatrix(spec.mlp, mlp), &mlp.up.matrix});
    const MlpInner inner = InnerRows(pass, spec.mlp, mlp, input, rows.count);
    AddToStream(pass, {.rows = rows,
                       .layer = mlp.down,
                       .values = inner.values,
                       .input = inner.forms,
                       .norm = {spec.post_mlp_norm, weights.post_mlp_norm},
                       .residual_scale = spec.residual_scale});
  }
}

}  // namespace llmi

#include "model/layer_input.h"

#include <algorithm>

#include "kernels/ops/activation.h"

namespace llmi {

void ProjectLayerRows(const LayerPass& pass, const ModelWeights& weights) {
  const LayerEmbeddingSpec& embedding = pass.spec.layer_embedding;
  const int64_t width = embedding.num_places * embedding.size;
  const LinearInput forms = MakeInput(pass.context, pass.num_rows, {&weights.layer_projection.matrix}, false, pass.workspace.forms);
  ConvertInput(pass.context, pass.x, pass.num_rows, pass.spec.hidden_size, forms);
  float* projected = Floats(pass.context, pass.workspace.projected, pass.num_rows * width);
  Linear(pass.context, ArgsOf(PartsOf({&weights.layer_projection}), pass.x, forms, pass.num_rows, projected, width, false));
  NormArgs norm = RowNorm(embedding.norm, weights.layer_norm, projected, pass.layer_rows, pass.num_rows, embedding.size);
  norm.x_stride = width;
  norm.out_stride = width;
  norm.num_groups = embedding.num_places;
  norm.accumulate = true;
  Norm(pass.context, norm);
}

void AddLayerInput(const LayerPass& pass, const LayerInputSpec& spec, const LayerWeights& weights) {
  const LayerEmbeddingSpec& embedding = pass.spec.layer_embedding;
  const int64_t size = embedding.size;
  const int64_t width = embedding.num_places * size;
  const int64_t most_rows = MostMlpRows(pass.context.device != nullptr);
  for (int64_t begin = 0; begin < pass.num_rows; begin += most_rows) {
    const RowRange rows{begin, std::min(most_rows, pass.num_rows - begin)};
    const float* x = pass.x + rows.begin * pass.spec.hidden_size;
    const LinearInput forms = MakeInput(pass.context, rows.count, {&weights.input_gate.matrix}, false, pass.workspace.forms);
    ConvertInput(pass.context, x, rows.count, pass.spec.hidden_size, forms);
    float* gate = Floats(pass.context, pass.workspace.gate_up, rows.count * size);
    Linear(pass.context, ArgsOf(PartsOf({&weights.input_gate}), x, forms, rows.count, gate, size, false));
    float* activated = Floats(pass.context, pass.workspace.activated, rows.count * size);
    const LinearInput inner =
        MakeInput(pass.context, rows.count, {&weights.input_projection.matrix}, false, pass.workspace.activated_forms);
    Activate(pass.context,
             {.activation = spec.activation,
              .gated = true,
              .x = gate,
              .num_rows = rows.count,
              .size = size,
              .out = activated,
              .up = pass.layer_rows + rows.begin * width + spec.place * size,
              .up_stride = width},
             inner);
    AddToStream(pass, {.rows = rows,
                       .layer = weights.input_projection,
                       .values = activated,
                       .input = inner,
                       .norm = {spec.norm, weights.input_norm},
                       .residual_scale = 1.0});
  }
}

}  // namespace llmi

// The MLP of one layer, gated or plain, MostMlpRows rows at a time, and its steps.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>

#include "kernels/ops/activation.h"
#include "model/layer_pass.h"

namespace llmi {

// Adds the MLP of the layer to the residual stream. It reads LayerPass::kept as it is in a parallel layer, else the norm of the stream.
void MlpLayer(const LayerPass& pass, const LayerSpec& spec, const LayerWeights& weights);

// The first matrix that reads an MLP's rows.
inline const PackedMatrix& FirstMatrix(const MlpSpec& mlp, const MlpWeights& weights) {
  return mlp.gated ? weights.gate.matrix : weights.up.matrix;
}
// out [num_rows, size] of x [num_rows, GateUpSize].
ActivationArgs ActivationOf(const MlpSpec& mlp, const MlpWeights& weights, const float* x, int64_t num_rows, float* out);

// The rows that an MLP reads.
struct MlpInput {
  const float* x;
  LinearInput forms;
  std::optional<NormArgs> norm = std::nullopt;  // that is still to make them
};
// Those rows of the layer, with the forms that the matrices `readers` need.
MlpInput ReadMlpRows(const LayerPass& pass, const LayerSpec& spec, const LayerWeights& weights, const RowRange& rows,
                     std::initializer_list<const PackedMatrix*> readers);
// The same of another norm of the stream, or of the stream itself.
MlpInput ReadNormedRows(const LayerPass& pass, const PlacedNorm& norm, const RowRange& rows,
                        std::initializer_list<const PackedMatrix*> readers);

// What `down` reads.
struct MlpInner {
  const float* values;  // [rows, size]
  LinearInput forms;
};
// act(gate x) * (up x), or act(up x), normed where the MLP has a norm.
MlpInner InnerRows(const LayerPass& pass, const MlpSpec& mlp, const MlpWeights& weights, const MlpInput& input, int64_t num_rows);

}  // namespace llmi

// The state that the layers of one forward pass share, and the steps that attention and MLP have in common.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <vector>

#include "kernels/ops/context.h"
#include "kernels/ops/linear.h"
#include "kernels/ops/linear_input.h"
#include "kernels/ops/norm.h"
#include "model/position_values.h"
#include "model/spec.h"
#include "model/weights.h"
#include "model/workspace.h"

namespace llmi {

class Ranks;

struct LayerPass {
  const KernelContext& context;
  const ModelSpec& spec;
  const PositionValues& positions;
  Workspace& workspace;
  int64_t num_rows;
  float* x;                      // residual stream [num_rows, hidden]
  float* normed;                 // [num_rows, hidden]
  float* kept;                   // [num_rows, hidden]; null: no layer is parallel
  float* layer_rows = nullptr;   // [num_rows, places * size]: embeddings for the layers
  const Ranks* ranks = nullptr;  // null: this process computes all rows of each matrix
};

// A pass over rows at these positions, whose residual stream is x. Finds its buffers, and begins what depends on positions alone: the
// values are valid until the next pass that begins with them. On a device an op has to read them (PositionValues::Read).
LayerPass BeginPass(const KernelContext& context, const ModelSpec& spec, const std::vector<int32_t>& positions, PositionValues& values,
                    Workspace& workspace, float* x);

// Some rows of the residual stream, and as many of the same buffers.
struct RowRange {
  int64_t begin;
  int64_t count;
};

// Makes room for the forms of num_rows rows that the matrices `readers` need. The result is valid until the next call with this room.
// fine: one scale for each 16 columns (decisions/0001).
LinearInput MakeInput(const KernelContext& context, int64_t num_rows, std::initializer_list<const PackedMatrix*> readers, bool fine,
                      FormsRoom& room);

// The layers as parts of one linear op, whose outputs are next to each other.
std::vector<LinearPart> PartsOf(std::initializer_list<const LinearWeights*> layers);

LinearArgs ArgsOf(const std::vector<LinearPart>& parts, const float* x, const LinearInput& input, int64_t num_rows, float* out,
                  int64_t out_stride, bool accumulate);

// The norm of whole rows [num_rows, size]; out may be x.
NormArgs RowNorm(const NormSpec& norm, const NormWeights& weights, const float* x, float* out, int64_t num_rows, int64_t size);

// A norm of the residual stream or of what a linear layer reads, where the model has one.
struct PlacedNorm {
  const NormSpec& spec;
  const NormWeights& weights;
};

// Returns what linear layers read: the norm of x [num_rows, size], stored in `out`, or x itself where there is no norm. Makes the forms
// `input`.
const float* NormedInput(const KernelContext& context, const PlacedNorm& norm, const float* x, float* out, int64_t num_rows, int64_t size,
                         const LinearInput& input);

// stream += residual_scale * norm(layer(values)), for these rows of the residual stream. Where the sum is not a part of the linear op,
// LayerPass::normed holds the layer's output.
struct ResidualArgs {
  RowRange rows;
  const LinearWeights& layer;
  const float* values;  // [rows.count, columns of the layer]
  const LinearInput& input;
  PlacedNorm norm;
  double residual_scale;
};
void AddToStream(const LayerPass& pass, const ResidualArgs& args);
// The same of values [rows.count, hidden] that are no layer's input but what is to be added, which it may change.
void AddRowsToStream(const LayerPass& pass, const RowRange& rows, float* added, const PlacedNorm& norm, double residual_scale);

}  // namespace llmi

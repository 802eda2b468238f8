// Embeddings for the layers, and what a layer makes of its own (LayerEmbeddingSpec, LayerInputSpec).
#pragma once

#include <cstdint>

#include "model/layer_pass.h"

namespace llmi {

// Adds to LayerPass::layer_rows, which hold scale * weight[token], the norm of what the projection makes of the stream.
void ProjectLayerRows(const LayerPass& pass, const ModelWeights& weights);

// Adds what the layer makes of its part of them to the stream.
void AddLayerInput(const LayerPass& pass, const LayerInputSpec& spec, const LayerWeights& weights);

}  // namespace llmi

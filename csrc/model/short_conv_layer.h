// The short convolution of a layer (ShortConvSpec).
#pragma once

#include "kernels/ops/conv.h"
#include "model/mixer.h"

namespace llmi {

// Adds it to the residual stream. normed_at: as for AttentionLayer.
void ShortConvLayer(const LayerPass& pass, int64_t layer, const LayerWeights& weights, float* normed_at, const StepStates& states);

// What the layer's input projection makes of the norm of each row, in Workspace::projected.
float* ProjectMixer(const LayerPass& pass, int64_t layer, const LayerWeights& weights, float* normed_at);
// Adds what the output projection makes of rows of MixerOutputSize values to the residual stream.
void AddMixed(const LayerPass& pass, int64_t layer, const LayerWeights& weights, const float* mixed);

}  // namespace llmi

// The short convolution of a layer (ShortConvSpec).
#pragma once

#include <initializer_list>
#include <vector>

#include "kernels/ops/conv.h"
#include "model/mixer.h"

namespace llmi {

// Adds it to the residual stream. normed_at: as for AttentionLayer.
void ShortConvLayer(const LayerPass& pass, int64_t layer, const LayerWeights& weights, float* normed_at, const StepStates& states);

// What the parts of the layer's input projection, whose matrices are `readers`, make of the norm of each row: at the begin of
// MixerProjectedSize values in Workspace::projected.
float* ProjectMixer(const LayerPass& pass, int64_t layer, const LayerWeights& weights, float* normed_at,
                    const std::vector<LinearPart>& parts, std::initializer_list<const PackedMatrix*> readers);
// Adds what the output projection makes of rows of MixerOutputSize values to the residual stream.
void AddMixed(const LayerPass& pass, int64_t layer, const LayerWeights& weights, const float* mixed);

}  // namespace llmi

// The experts of one layer and the shared one, MostMlpRows rows at a time.
//
// A row's sum is: its experts in ascending order, each times its weight, normed where they have a norm; then the shared expert, normed
// where it has one, times its gate; then the norm after the MLP and the residual, as in a dense layer.
#pragma once

#include "model/expert_use.h"
#include "model/layer_pass.h"

namespace llmi {

// Adds the experts of the layer to the residual stream, and on the CPU counts in `use` which of them the rows used. layer: its number.
void ExpertLayer(const LayerPass& pass, int64_t layer, const LayerWeights& weights, ExpertUse* use);

}  // namespace llmi

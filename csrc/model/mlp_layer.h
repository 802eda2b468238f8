// The MLP of one layer, gated or plain, kMlpRows rows at a time.
#pragma once

#include <cstdint>

#include "model/layer_pass.h"

namespace llmi {

// Adds the MLP of the layer to the residual stream. It reads LayerPass::kept as it is in a parallel layer, else the norm of the stream.
void MlpLayer(const LayerPass& pass, const LayerSpec& spec, const LayerWeights& weights);

}  // namespace llmi

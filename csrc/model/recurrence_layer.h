// A layer whose mixer is the gated delta rule or Mamba-2 (RecurrenceSpec).
#pragma once

#include "kernels/ops/recurrence.h"
#include "model/mixer.h"

namespace llmi {

RecurrenceShape ShapeOf(const LayerSpec& layer);
// What a row keeps in Workspace::projected: what the projections make of it, then the input of the recurrence.
int64_t RecurrenceProjectedSize(const RecurrenceShape& shape);

// Adds it to the residual stream. normed_at: as for AttentionLayer.
void RecurrenceLayer(const LayerPass& pass, int64_t layer, const LayerWeights& weights, float* normed_at, const StepStates& states);

}  // namespace llmi

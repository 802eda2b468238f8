// Mixers with a state on one of several ranks: each has some heads of a recurrence, with their states.
#pragma once

#include <cstdint>
#include <vector>

#include "model/layer_pass.h"
#include "model/ranks.h"
#include "model/weights.h"

namespace llmi {

// Makes the spec and the vectors of each recurrence those of the rank's heads; its matrices have been loaded so.
void TakeOwnHeads(const KernelContext& context, const Ranks& ranks, ModelSpec* spec, ModelWeights* weights);

// What the heads of all ranks make of the rows, [rows, heads * value_size]; mixed: the same of the rank's.
float* GatherMixed(const LayerPass& pass, int64_t layer, const float* mixed);

// A state is not finite if a part of it on any rank is not.
void GatherFaults(const Ranks& ranks, std::vector<uint8_t>* faults);

}  // namespace llmi

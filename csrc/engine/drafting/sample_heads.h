// What a trained drafter keeps of a sequence of the engine.
#pragma once

#include "engine/running.h"
#include "speculative/trained_head.h"

namespace llmi {

struct SampleHeadState : HeadState {
  SampleHeadState(TrainedHead* its_head, Sample& its_sample) : HeadState(its_head), sample(its_sample) {}
  Sample& sample;  // whose blocks hold the head's K and V
};

}  // namespace llmi

// What a beam search records of a chosen token: its log-probabilities and its row in the decode trace.
#pragma once

#include <cstdint>

#include "engine/beams/group.h"
#include "kernels/ops/context.h"
#include "sampling/logprobs.h"

namespace llmi {

// arrival: of the token's parent, with logits and scored log-probabilities. The processed log-probabilities are the scored ones: they are
// not normalised again.
TokenLogprobs BeamLogprobs(const KernelContext& context, const BeamArrival& arrival, int32_t token, const WantedLogprobs& wanted);

// draws: the search drew its candidates. position: of the token in prompt and output.
TraceRow BeamTraceRow(const KernelContext& context, const BeamArrival& arrival, const BeamCandidate& candidate, bool draws, int64_t step,
                      int64_t position, double time_s);

}  // namespace llmi

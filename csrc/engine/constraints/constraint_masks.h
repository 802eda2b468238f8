// Fills the masks of a step's constrained rows, one sample a thread of the pool; constraints in Python first, on the engine thread.
#pragma once

#include <vector>

#include "engine/running.h"
#include "kernels/ops/context.h"

namespace llmi {

// Before the plans of the rows: sets LogitsRow::mask of every row that a token follows and a constraint limits.
void FillMasks(const KernelContext& context, int64_t vocab_size, std::vector<LogitsRow>* rows);

// Before drafts are proposed: finds the forced tokens of samples, which ForcedDrafter proposes.
void FindForced(const KernelContext& context, int64_t vocab_size, const std::vector<Sample*>& samples);

}  // namespace llmi

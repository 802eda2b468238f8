// Verification of whole drafts: a judge sees all rows of a draft at once and names the accepted path and the token after it.
#pragma once

#include <span>

#include "engine/running.h"
#include "kernels/ops/context.h"
#include "speculative/verify.h"

namespace llmi {

// Asks the request's judge about the draft of the row's sample, whose raw logits are sample.judged_rows. Throws Error(kHook) from the
// judge, and for a path that is none or a token outside the vocabulary.
DraftVerdict JudgeDraft(const KernelContext& context, const LogitsRow& row, int64_t vocab_size);

}  // namespace llmi

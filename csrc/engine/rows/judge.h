// Verification of whole drafts: a judge sees all rows of a draft at once and names the accepted path and the token after it.
#pragma once

#include <span>

#include "engine/running.h"
#include "kernels/ops/context.h"
#include "speculative/verify.h"

namespace llmi {

// Asks the request's judge about the sample's draft, whose raw logits are sample.judged_rows. Throws Error(kHook) from the judge, and for a
// path that is none or a token outside the vocabulary.
DraftVerdict JudgeDraft(const KernelContext& context, const Sample& sample, int64_t vocab_size);

}  // namespace llmi

// Verification of whole drafts: a judge sees all rows of a draft at once and names the accepted path and the token after it.
#pragma once

#include <span>

#include "engine/running.h"
#include "kernels/ops/context.h"
#include "speculative/verify.h"

namespace llmi {

// Asks the request's judge about the draft of the row's sample. logits, bases [1 + nodes, vocab_size]: the raw rows and those before the
// masks, the root's first. Throws Error(kHook) from the judge, for a path that does not exist, and for a token outside the vocabulary.
DraftVerdict JudgeDraft(const KernelContext& context, const LogitsRow& row, std::span<const float> logits, std::span<const float> bases,
                        int64_t vocab_size);

}  // namespace llmi

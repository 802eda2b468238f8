// Verification of whole drafts: a judge sees all rows of a draft at once and names the accepted path and the token after it.
#pragma once

#include <span>
#include <vector>

#include "engine/running.h"
#include "kernels/ops/context.h"
#include "speculative/verify.h"

namespace llmi {

// The rows [1 + nodes, vocab_size] of a draft, the root's first: as the model gave them, and before the masks where they are combined of
// several (rows/combined_rows.h).
struct JudgedRows {
  std::vector<float> raw;
  std::vector<float> combined;  // empty: nothing is combined

  std::span<const float> bases() const { return combined.empty() ? raw : combined; }
};

// Asks the request's judge about the draft of the row's sample. Throws Error(kHook) from the judge, for a path that does not exist, and for
// a token outside the vocabulary.
DraftVerdict JudgeDraft(const KernelContext& context, const LogitsRow& row, const JudgedRows& rows, int64_t vocab_size);

}  // namespace llmi

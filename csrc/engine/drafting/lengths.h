// The number of tokens that a sequence drafts in a step: the request's number, or that of the user's policy, or the number that pays by
// cost and acceptance.
#pragma once

#include <cstdint>

#include "engine/costs.h"
#include "engine/drafting/history.h"
#include "engine/running.h"
#include "kernels/ops/context.h"
#include "scheduler/scheduler.h"

namespace llmi {

// The step so far.
struct StepPlan {
  int64_t num_rows;
  double expected_tokens;
};

class DraftLengths {
 public:
  DraftLengths(const KernelContext& context, const Scheduler& scheduler, StepCosts& costs, DrafterHistories& histories)
      : context_(context), scheduler_(scheduler), costs_(costs), histories_(histories) {}

  // Upper limit of a draft's nodes: the request's number, or 16. Drafts that may be cut get at most `room`, the rows left in the step.
  // Drafting also cuts drafts at max_tokens.
  static int64_t Limit(const Sample& sample, int64_t room);
  // The length to draft, in [0, limit]. Throws Error(kHook) from the user's policy.
  int64_t Choose(const Sample& sample, int32_t confidence, int64_t limit, const StepPlan& plan);

 private:
  const KernelContext& context_;
  const Scheduler& scheduler_;
  StepCosts& costs_;
  DrafterHistories& histories_;
};

}  // namespace llmi

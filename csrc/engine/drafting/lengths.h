// How many tokens a sequence drafts in a step: the request's number, the user's policy, or what pays by cost and acceptance.
#pragma once

#include <cstdint>

#include "engine/costs.h"
#include "engine/drafting/history.h"
#include "engine/running.h"
#include "kernels/ops/context.h"
#include "scheduler/scheduler.h"

namespace llmi {

// What a step holds so far.
struct StepPlan {
  int64_t num_rows;
  double expected_tokens;
};

class DraftLengths {
 public:
  DraftLengths(const KernelContext& context, const Scheduler& scheduler, StepCosts& costs, DrafterHistories& histories)
      : context_(context), scheduler_(scheduler), costs_(costs), histories_(histories) {}

  // Most nodes of a draft: the request's number, or 16; at most `room`, the rows left in the step, where drafts may be cut. TakeDraft also
  // cuts drafts at max_tokens.
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

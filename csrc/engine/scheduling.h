// Scheduling of a step by user code and by cost: the keys of the user's policy, the number of prompt tokens that may join decodes, and the
// shape of the step for StepCosts.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/active_requests.h"
#include "engine/costs.h"
#include "engine/policy.h"
#include "scheduler/scheduler.h"

namespace llmi {

// Gives each waiting sequence its key by `policy`. If the policy throws for a request, that request fails.
void SetPolicyKeys(PolicyHook& policy, Scheduler& scheduler, ActiveRequests& requests);

// The most prompt tokens that the next step may take if it also decodes: StepCosts::PromptBudget while a client reads a stream, else
// INT64_MAX.
int64_t PromptBudget(const Scheduler& scheduler, StepCosts& costs);

// The shape of a step. num_rows: rows of its forward.
StepShape ShapeOf(const std::vector<ScheduledPiece>& pieces, int64_t num_rows);

}  // namespace llmi

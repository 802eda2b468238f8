// Before a step: the keys of a user's policy, and how many prompt tokens may join decodes. After it: what determined its time.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/active_requests.h"
#include "engine/costs.h"
#include "engine/policy.h"
#include "scheduler/scheduler.h"

namespace llmi {

// Gives each waiting sequence its key by `policy`. A request that the policy throws for fails.
void SetPolicyKeys(PolicyHook& policy, Scheduler& scheduler, ActiveRequests& requests);

// Most prompt tokens of the next step if it decodes too: while a client reads a stream, StepCosts::PromptBudget; else INT64_MAX.
int64_t PromptBudget(const Scheduler& scheduler, StepCosts& costs);

// num_rows: of the step's forward.
StepShape ShapeOf(const std::vector<ScheduledPiece>& pieces, int64_t num_rows);

}  // namespace llmi

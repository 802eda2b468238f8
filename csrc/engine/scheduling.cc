#include "engine/scheduling.h"

#include <algorithm>
#include <utility>

#include "core/errors.h"
#include "engine/clock.h"

namespace llmi {

void SetPolicyKeys(PolicyHook& policy, Scheduler& scheduler, ActiveRequests& requests) {
  if (scheduler.waiting().size() < 2) return;
  const double now = NowSeconds();
  std::vector<std::pair<Running*, Error>> failed;
  for (ScheduledSequence* sequence : scheduler.waiting()) {
    Running& running = *sequence->owner->running;
    try {
      sequence->key = policy.Key({running.request->id, sequence->priority, running.request->arrival_time_s, running.prompt_len(),
                                  sequence->num_tokens, sequence->max_new_tokens, sequence->num_preemptions},
                                 now);
    } catch (const Error& error) {
      failed.emplace_back(&running, error);
    }
  }
  for (auto& [running, error] : failed) requests.Fail(*running, error);
}

int64_t PromptBudget(const Scheduler& scheduler, StepCosts& costs) {
  int64_t num_decodes = 0;
  bool watched = false;
  for (const ScheduledSequence* sequence : scheduler.running()) {
    if (sequence->finished || !IsDecode(*sequence)) continue;
    const Request& request = sequence->owner->request();
    ++num_decodes;
    watched = watched || (request.stream && !request.stepped);
  }
  const auto is_prompt = [](const ScheduledSequence* sequence) { return !IsDecode(*sequence); };
  const bool has_prompt = !scheduler.waiting().empty() || std::any_of(scheduler.running().begin(), scheduler.running().end(), is_prompt);
  return watched && has_prompt ? costs.PromptBudget(num_decodes) : INT64_MAX;
}

StepShape ShapeOf(const std::vector<ScheduledPiece>& pieces, int64_t num_rows) {
  StepShape shape;
  shape.num_rows = num_rows;
  shape.num_sequences = static_cast<int64_t>(pieces.size());
  for (const ScheduledPiece& piece : pieces) {
    shape.num_prompts += piece.num_tokens() > (piece.sequence->companion == nullptr ? 1 : 2) ? 1 : 0;
    shape.drafted = shape.drafted || piece.sequence->owner->walk.draft().size() > 0;
  }
  return shape;
}

}  // namespace llmi

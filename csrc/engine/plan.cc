// Before a step: the keys of a user's policy, and how many prompt tokens may join decodes. After it: the time that it took.
#include <algorithm>
#include <utility>
#include <vector>

#include "core/errors.h"
#include "engine/running.h"

namespace llmi {

// A policy of the user's orders the queue by its own keys; where it raises, that request ends.
void Engine::SetPolicyKeys() {
  if (config_.policy_hook == nullptr || scheduler_->waiting().size() < 2) return;
  const double now = NowSeconds();
  std::vector<std::pair<Running*, Error>> failed;
  for (ScheduledSequence* sequence : scheduler_->waiting()) {
    Running& running = *static_cast<Sample*>(sequence->owner)->running;
    try {
      sequence->key =
          config_.policy_hook->Key({running.request->id, sequence->priority, running.request->arrival_time_s, running.prompt_len(),
                                    sequence->num_tokens, sequence->max_new_tokens, sequence->num_preemptions},
                                   now);
    } catch (const Error& error) {
      failed.emplace_back(&running, error);
    }
  }
  for (auto& [running, error] : failed) FailRequest(*running, error);
}

// While a client reads a stream, prompts get no more of a step than StepCosts::PromptBudget; else all of it.
int64_t Engine::PromptBudget() {
  int64_t num_decodes = 0;
  bool watched = false;
  for (const ScheduledSequence* sequence : scheduler_->running()) {
    if (sequence->finished || sequence->num_tokens - sequence->kv.num_tokens != 1) continue;
    const Request& request = *static_cast<const Sample*>(sequence->owner)->running->request;
    ++num_decodes;
    watched = watched || (request.stream && !request.stepped);
  }
  const bool has_prompt = !scheduler_->waiting().empty() || std::any_of(scheduler_->running().begin(), scheduler_->running().end(),
                                                                        [](const auto* s) { return s->num_tokens - s->kv.num_tokens > 1; });
  return watched && has_prompt ? costs_->PromptBudget(num_decodes) : INT64_MAX;
}

void Engine::LearnStepTime(const std::vector<ScheduledPiece>& pieces, int64_t num_rows, double seconds) {
  StepShape shape;
  shape.num_rows = num_rows;
  shape.num_sequences = static_cast<int64_t>(pieces.size());
  for (const ScheduledPiece& piece : pieces) {
    shape.num_prompts += piece.num_new > 1 ? 1 : 0;
    shape.drafted = shape.drafted || static_cast<const Sample*>(piece.sequence->owner)->draft.size() > 0;
  }
  costs_->Learn(shape, seconds);
}

}  // namespace llmi

// Before a step: the user's policy, and how much of a prompt may go beside decodes. After it: what it took.
#include <algorithm>
#include <utility>
#include <vector>

#include "core/aligned.h"
#include "core/errors.h"
#include "core/system_limits.h"
#include "engine/running.h"

namespace llmi {
namespace {

constexpr double kStallFactor = 1.7;
constexpr int64_t kMinPromptBudget = 8;

}  // namespace

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

// While somebody reads along, a prompt may make a step kStallFactor times as long as its decodes alone, by c(M).
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
  if (!watched || !has_prompt) return INT64_MAX;
  if (costs_.empty()) MeasureCosts();
  const double limit = kStallFactor * decode_ratio_ * costs_.Seconds(num_decodes);
  int64_t budget = kMinPromptBudget;
  while (budget < config_.scheduler.max_num_batched_tokens && mixed_ratio_ * costs_.Seconds(num_decodes + budget + 1) <= limit) ++budget;
  return budget;
}

// Whether copying a preempted sequence's blocks to the host and back takes less time than computing them again, by what both
// were seen to take. Nothing seen yet: it does; and one copy that was held up must not end copying, so each fourth that seems dear is made.
bool Engine::PrefersCopy(const ScheduledSequence& sequence) {
  constexpr int64_t kRetry = 4;
  const int64_t num_pages = cache_->NumCommittedPages(sequence.kv);
  if (static_cast<uint64_t>(num_pages * cache_->pool().page_bytes()) > AvailableMemoryBytes() / 2) return false;
  const double copies = 2 * cache_->copy_seconds_per_page() * static_cast<double>(num_pages);
  if (copies <= prompt_seconds_per_token_ * static_cast<double>(sequence.kv.num_tokens)) return true;
  if (++num_dear_copies_ % kRetry == 0) return true;
  ++num_copies_left_out_;
  return false;
}

void Engine::LearnStepTime(const std::vector<ScheduledPiece>& pieces, int64_t num_rows, double seconds) {
  const auto is_prompt = [](const ScheduledPiece& piece) { return piece.num_new > 1; };
  const auto num_prompts = std::count_if(pieces.begin(), pieces.end(), is_prompt);
  if (num_prompts > 0) {
    const double per_token = seconds / static_cast<double>(num_rows);
    prompt_seconds_per_token_ = prompt_seconds_per_token_ == 0 ? per_token : 0.8 * prompt_seconds_per_token_ + 0.2 * per_token;
  }
  const double foretold = costs_.Seconds(num_rows);
  if (foretold <= 0) return;
  if (num_prompts == static_cast<int64_t>(pieces.size())) return;
  const double seen = std::clamp(seconds / foretold, 0.2, 20.0);
  const bool drafted = std::any_of(pieces.begin(), pieces.end(),
                                   [](const auto& piece) { return static_cast<const Sample*>(piece.sequence->owner)->draft.size() > 0; });
  // Until a plain step has shown how far the curve is off, drafted ones do.
  if (num_prompts == 0 && drafted && seen_plain_decode_) {
    // One slow step among few drafted ones must not end drafting.
    drafted_ratio_ = 0.9 * drafted_ratio_ + 0.1 * std::clamp(seen / decode_ratio_, 0.5, 2.0);
    return;
  }
  double& ratio = num_prompts > 0 ? mixed_ratio_ : decode_ratio_;
  ratio = 0.8 * ratio + 0.2 * seen;
  // What drafted steps cost is forgotten while none are seen, or it would never be found wrong.
  if (num_prompts > 0 || drafted) return;
  seen_plain_decode_ = true;
  drafted_ratio_ += 0.02 * (1 - drafted_ratio_);
}

}  // namespace llmi

#include "engine/simulation.h"

#include <algorithm>
#include <span>
#include <string>
#include <utility>

#include "core/errors.h"
#include "engine/prompt_budget.h"

namespace llmi {
namespace {

// A number in [0, 1) that is a function of a sequence and a place in it (SplitMix64).
double Chance(uint64_t sequence, int64_t place) {
  uint64_t x = sequence * 0x9e3779b97f4a7c15 + static_cast<uint64_t>(place) * 0xd1b54a32d192ed03;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return static_cast<double>((x ^ (x >> 31)) >> 11) * 0x1p-53;
}

bool Draws(const ScheduledPiece& piece) {
  const ScheduledSequence& sequence = *piece.sequence;
  return !sequence.finished && sequence.kv.num_tokens + piece.num_new == sequence.num_tokens;
}

}  // namespace

SimulatedEngine::SimulatedEngine(const KvGroups& groups, const SimulatedConfig& config)
    : config_(config), cache_(groups, config.num_pages, nullptr, {}, false), scheduler_(config.scheduler, &cache_) {
  if (config.prefix_caching) cache_.EnablePrefixCache(1);
  cache_.set_reclaimer([this] { return scheduler_.DropWaitingCache(); });
}

SimulatedEngine::~SimulatedEngine() {
  for (const std::unique_ptr<Running>& running : running_) {
    if (running != nullptr) cache_.Free(&running->scheduled.kv);
  }
}

void SimulatedEngine::Add(SimulatedRequest request) {
  const auto num_tokens = static_cast<int64_t>(request.tokens.size()) + request.num_output;
  CheckArgument(!request.tokens.empty() && request.num_output >= 1, "a request has a token of a prompt and one of an output at least");
  CheckArgument(0 <= request.num_given && request.num_given < num_tokens - request.num_output, "the last token of a prompt is computed");
  if (request.num_samples < 1 || request.num_samples > config_.scheduler.max_num_seqs) {
    throw Error(ErrorKind::kInvalidArgument, "n = " + std::to_string(request.num_samples) +
                                                 " is outside [1, max_num_seqs = " + std::to_string(config_.scheduler.max_num_seqs) + "]");
  }
  CheckArgument(requests_.empty() || request.arrival_s >= requests_.back().arrival_s, "arrivals go back");
  const int64_t pages = cache_.groups().MaxPages(num_tokens, config_.scheduler.max_num_batched_tokens);
  if (pages > cache_.pool().num_pages()) {
    throw Error(ErrorKind::kInvalidArgument, "a request of " + std::to_string(num_tokens) + " tokens needs " + std::to_string(pages) +
                                                 " pages, and the pool has " + std::to_string(cache_.pool().num_pages()));
  }
  if (!config_.scheduler.chunked_prefill && static_cast<int64_t>(request.tokens.size()) > config_.scheduler.max_num_batched_tokens) {
    throw Error(ErrorKind::kInvalidArgument,
                "a prompt of " + std::to_string(request.tokens.size()) + " tokens is longer than a step, and chunked prefill is off");
  }
  num_queued_tokens_ += static_cast<int64_t>(request.tokens.size());
  num_under_way_ += request.num_samples;
  requests_.push_back(std::move(request));
}

// Queues the requests that have come.
void SimulatedEngine::Take() {
  for (; num_taken_ < requests_.size() && requests_[num_taken_].arrival_s <= now_s_; ++num_taken_) {
    SimulatedRequest& request = requests_[num_taken_];
    TakeGiven(request);
    auto running = std::make_unique<Running>();
    running->request = &request;
    running->tokens = std::move(request.tokens);
    running->num_left = request.num_output;
    ScheduledSequence& scheduled = running->scheduled;
    scheduled.arrival = running_.size();
    scheduled.priority = request.priority;
    scheduled.num_seats = request.num_samples;
    scheduled.max_new_tokens = request.num_output;
    scheduled.num_tokens = static_cast<int64_t>(running->tokens.size());
    scheduled.token_ids = &running->tokens;
    cache_.Init(&scheduled.kv);
    scheduler_.Add(&scheduled);
    running_.push_back(std::move(running));
    running_.resize(running_.size() + static_cast<size_t>(request.num_samples) - 1);  // places of its other samples
  }
}

int64_t SimulatedEngine::BlockBytes(int64_t num_tokens) const {
  const KvGroups& groups = cache_.groups();
  return num_tokens / groups.block_size() * groups.pages_per_block() * groups.page_bytes();
}

// Blocks from elsewhere become known beginnings, as far as pages are free or only cached: the rest is computed.
void SimulatedEngine::TakeGiven(const SimulatedRequest& request) {
  const int64_t block_size = cache_.groups().block_size();
  const std::span<const int32_t> tokens = std::span(request.tokens).first(static_cast<size_t>(request.num_given));
  if (request.num_given < block_size || !cache_.has_prefix_cache()) return;
  KvSequence kv;
  cache_.Init(&kv);
  cache_.AttachPrefix(&kv, tokens, request.num_given, "");
  while (kv.num_tokens + block_size <= request.num_given) {
    const int64_t num_new = block_size - kv.num_tokens % block_size;
    if (!cache_.TryReserve(&kv, num_new, KvCache::Reclaim::kCacheOnly)) break;
    cache_.Commit(&kv, num_new, tokens);
  }
  cache_.Free(&kv);
}

// As the engine's SetPolicyKeys.
void SimulatedEngine::SetKeys() {
  if (config_.policy == nullptr || scheduler_.waiting().size() < 2) return;
  for (ScheduledSequence* sequence : scheduler_.waiting()) {
    const Running& running = *running_[sequence->arrival];
    const SimulatedRequest& request = *running.request;
    const int64_t prompt_len = sequence->num_tokens - (request.num_output - sequence->max_new_tokens);
    sequence->key = config_.policy->Key({request.number, sequence->priority, request.arrival_s, prompt_len, sequence->num_tokens,
                                         sequence->max_new_tokens, sequence->num_preemptions},
                                        now_s_);
  }
}

void SimulatedEngine::RunUntil(double time_s) {
  while (true) {
    if (!scheduler_.HasWork()) {
      if (num_taken_ == requests_.size()) return;
      now_s_ = std::max(now_s_, requests_[num_taken_].arrival_s);
    }
    if (now_s_ >= time_s) return;
    Take();
    Step();
  }
}

void SimulatedEngine::RunToEnd() {
  while (num_under_way_ > 0) {
    if (!scheduler_.HasWork()) now_s_ = std::max(now_s_, requests_[num_taken_].arrival_s);
    Take();
    Step();
  }
}

// As the engine's (engine/scheduling.cc), by the formula's times.
int64_t SimulatedEngine::PromptBudget() const {
  if (!config_.streams) return INT64_MAX;
  int64_t num_decodes = 0;
  bool has_prompt = !scheduler_.waiting().empty();
  for (const ScheduledSequence* sequence : scheduler_.running()) {
    if (sequence->finished) continue;
    if (IsDecode(*sequence)) {
      ++num_decodes;
    } else {
      has_prompt = true;
    }
  }
  if (num_decodes == 0 || !has_prompt) return INT64_MAX;
  return PromptBudgetOf(config_.costs.rows, 1, 1, num_decodes, config_.scheduler.max_num_batched_tokens);
}

void SimulatedEngine::Step() {
  SetKeys();
  const std::vector<ScheduledPiece> pieces = scheduler_.Schedule(PromptBudget());
  if (pieces.empty()) {  // rows of a static batch that have all ended
    scheduler_.EndStep();
    CheckInternal(++num_empty_steps_ <= 2, "work is queued but nothing can be scheduled");
    return;
  }
  num_empty_steps_ = 0;
  Draft(pieces);
  SimulatedStep step;
  step.start_s = now_s_;
  int64_t num_drafted = 0, num_logits = 0;
  for (const ScheduledPiece& piece : pieces) {
    const int64_t drafted = running_[piece.sequence->arrival]->num_drafted;
    const int64_t num_rows = piece.num_rows() + drafted;
    step.num_rows += num_rows;
    (IsDecode(*piece.sequence) ? step.num_decodes : step.num_prompt_tokens) += num_rows;
    num_drafted += drafted;
    if (Draws(piece)) num_logits += 1 + drafted;
  }
  scheduler_.Commit(pieces);
  for (const ScheduledPiece& piece : pieces) {
    step.kv_tokens += piece.sequence->kv.num_tokens + running_[piece.sequence->arrival]->num_drafted;
  }
  const SimulatedCosts& costs = config_.costs;
  step.seconds = costs.rows.Seconds(step.num_rows) + costs.kv_s * static_cast<double>(step.kv_tokens) +
                 costs.logits_s * static_cast<double>(num_logits) + costs.draft_s * static_cast<double>(num_drafted);
  step.used_pages = cache_.pool().num_pages() - cache_.num_available();
  now_s_ += step.seconds;
  steps_.push_back(step);
  for (const ScheduledPiece& piece : pieces) {
    Running& running = *running_[piece.sequence->arrival];
    const ScheduledSequence& sequence = running.scheduled;
    if (sequence.finished || sequence.kv.num_tokens < sequence.num_tokens) continue;
    SimulatedRequest& request = *running.request;
    if (request.first_token_s < 0) {
      request.first_token_s = now_s_;
      num_queued_tokens_ -= sequence.num_tokens;
      StartSiblings(running);
    }
    TakeTokens(running);
  }
  scheduler_.EndStep();
  if (config_.scheduler.policy != SchedulingPolicy::kStatic) return;
  for (std::unique_ptr<Running>& running : running_) {  // rows that have left together
    if (running == nullptr || !running->scheduled.finished || scheduler_.Contains(&running->scheduled)) continue;
    cache_.Free(&running->scheduled.kv);
    running = nullptr;
  }
}

// Drafts of the step's decodes, in pages that are free or only cached.
void SimulatedEngine::Draft(const std::vector<ScheduledPiece>& pieces) {
  for (const ScheduledPiece& piece : pieces) {
    Running& running = *running_[piece.sequence->arrival];
    running.num_drafted = 0;
    const int64_t wanted = std::min(config_.drafts.num_tokens, running.num_left - 1);
    if (wanted <= 0 || !IsDecode(*piece.sequence) || !Draws(piece)) continue;
    const int64_t num_slots = piece.num_new + wanted;
    if (cache_.TryReserve(&running.scheduled.kv, num_slots, KvCache::Reclaim::kCacheOnly, wanted)) running.num_drafted = wanted;
  }
}

// The other samples share the prompt's blocks, and draw their first tokens from its last row.
void SimulatedEngine::StartSiblings(Running& leader) {
  SimulatedRequest& request = *leader.request;
  leader.scheduled.num_seats = 1;
  for (int64_t i = 1; i < request.num_samples; ++i) {
    auto sample = std::make_unique<Running>();
    sample->request = &request;
    sample->tokens = leader.tokens;
    sample->num_left = request.num_output;
    ScheduledSequence& scheduled = sample->scheduled;
    scheduled.arrival = leader.scheduled.arrival + static_cast<uint64_t>(i);
    scheduled.priority = request.priority;
    scheduled.max_new_tokens = request.num_output;
    scheduled.num_tokens = leader.scheduled.num_tokens;
    scheduled.token_ids = &sample->tokens;
    cache_.Init(&scheduled.kv);
    cache_.Fork(leader.scheduled.kv, &scheduled.kv);
    scheduled.max_computed = scheduled.kv.num_tokens;
    scheduler_.AddRunning(&scheduled);
    Running& started = *sample;
    running_[scheduled.arrival] = std::move(sample);
    TakeTokens(started);
  }
}

// The token of its last row, and those of its draft that are accepted.
void SimulatedEngine::TakeTokens(Running& running) {
  ScheduledSequence& sequence = running.scheduled;
  for (int64_t i = 0; running.num_left > 0; ++i) {
    // A token that no prompt has, since an output is known to nobody.
    running.tokens.push_back(-1 - static_cast<int32_t>(sequence.arrival & 0x3fffffff));
    ++sequence.num_tokens;
    --sequence.max_new_tokens;
    --running.num_left;
    if (i >= running.num_drafted || Chance(sequence.arrival, sequence.num_tokens) >= config_.drafts.acceptance) break;
    cache_.Commit(&sequence.kv, 1, running.tokens);
    sequence.max_computed = std::max(sequence.max_computed, sequence.kv.num_tokens);
  }
  if (running.num_left == 0) Finish(running);
}

void SimulatedEngine::Finish(Running& running) {
  SimulatedRequest& request = *running.request;
  request.end_s = now_s_;
  request.num_cached = std::max(request.num_cached, running.scheduled.num_cached);
  request.num_preemptions += running.scheduled.num_preemptions;
  --num_under_way_;
  ScheduledSequence& sequence = running.scheduled;
  if (config_.scheduler.policy == SchedulingPolicy::kStatic) {
    sequence.finished = true;
    sequence.num_tokens = sequence.kv.num_tokens;
    return;
  }
  scheduler_.Remove(&sequence);
  cache_.Free(&sequence.kv);
  running_[sequence.arrival] = nullptr;
}

}  // namespace llmi

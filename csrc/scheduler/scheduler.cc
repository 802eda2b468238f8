#include "scheduler/scheduler.h"

#include <algorithm>
#include <span>

namespace llmi {
namespace {

constexpr int64_t kWorthWaiting = 4;  // blocks: a sequence waits a step to find this many more in the prefix cache
constexpr int64_t kDrawnMemory = 32;  // the largest weight of the running mean drawn_share_, in sequences

int64_t Missing(const ScheduledSequence& sequence) { return sequence.num_tokens - sequence.kv.num_tokens; }

std::span<const int32_t> Tokens(const ScheduledSequence& sequence) {
  return sequence.token_ids == nullptr ? std::span<const int32_t>() : *sequence.token_ids;
}

// Draft rows after the next token. A draft runs only together with the last known token, or after it.
int64_t Drafted(const ScheduledSequence& sequence) { return Missing(sequence) <= 1 ? sequence.num_drafted : 0; }

// It computes its last known token, or only a draft after it.
bool Decodes(const ScheduledSequence& sequence) { return Missing(sequence) == 1 || (Missing(sequence) == 0 && sequence.num_drafted > 0); }

// The most tokens of one piece. If the sequence has a draft, its last known token and the draft run in a separate step.
int64_t MostAtOnce(const ScheduledSequence& sequence) {
  return Missing(sequence) > 1 && sequence.num_drafted > 0 ? Missing(sequence) - 1 : Missing(sequence);
}

bool Overtaken(const ScheduledSequence& sequence) { return sequence.num_overtaken >= kMaxOvertaken; }

// The most tokens that may come from the prefix cache. The last token is always computed, since the next one is drawn from its row.
int64_t MostCached(const ScheduledSequence& sequence) { return std::min(sequence.num_tokens - 1, sequence.first_wanted_row); }

template <typename Container>
bool Erase(Container& container, ScheduledSequence* sequence) {
  const auto found = std::find(container.begin(), container.end(), sequence);
  if (found == container.end()) return false;
  container.erase(found);
  return true;
}

}  // namespace

bool Scheduler::Before(const ScheduledSequence* a, const ScheduledSequence* b) const {
  if (Overtaken(*a) != Overtaken(*b)) return Overtaken(*a);
  if (config_.policy == SchedulingPolicy::kPriority && a->priority != b->priority) return a->priority < b->priority;
  return a->arrival < b->arrival;
}

void Scheduler::Add(ScheduledSequence* sequence) {
  sequence->allowance = std::max(sequence->allowance, sequence->max_new_tokens);
  // A queue that is sorted in each step need not be in order before that.
  const auto place = SortsWaiting()
                         ? waiting_.end()
                         : std::upper_bound(waiting_.begin(), waiting_.end(), sequence, [&](auto* a, auto* b) { return Before(a, b); });
  waiting_.insert(place, sequence);
}

void Scheduler::AddRunning(ScheduledSequence* sequence) {
  sequence->allowance = std::max(sequence->allowance, sequence->max_new_tokens);
  const auto place = std::upper_bound(running_.begin(), running_.end(), sequence, [&](auto* a, auto* b) { return Before(a, b); });
  running_.insert(place, sequence);
}

void Scheduler::Remove(ScheduledSequence* sequence) {
  if (!Erase(running_, sequence)) Erase(waiting_, sequence);
  const int64_t drawn = sequence->allowance - sequence->max_new_tokens;
  if (drawn == 0) return;
  num_left_ = std::min(num_left_ + 1, kDrawnMemory);
  drawn_share_ += (static_cast<double>(drawn) / static_cast<double>(sequence->allowance) - drawn_share_) / static_cast<double>(num_left_);
}

std::vector<ScheduledPiece> Scheduler::Schedule(int64_t prompt_budget) {
  std::vector<ScheduledPiece> pieces;
  int64_t budget = config_.max_num_batched_tokens;
  OrderWaiting();
  if (config_.policy == SchedulingPolicy::kPrefillFirst) {
    // First the prompts of running sequences, then waiting ones; decodes run only if no prompt is left to compute.
    const auto has_prompt = [](const ScheduledSequence* s) { return Missing(*s) > 1; };
    if (!waiting_.empty() && std::none_of(running_.begin(), running_.end(), has_prompt)) AdmitWaiting(&budget, &prompt_budget, &pieces);
    if (!pieces.empty()) return pieces;
  }
  if (config_.waiting_served_ratio > 0 && config_.policy != SchedulingPolicy::kStatic && !paused_decodes_ && !running_.empty() &&
      static_cast<double>(waiting_.size()) >= config_.waiting_served_ratio * static_cast<double>(running_.size())) {
    AdmitWaiting(&budget, &prompt_budget, &pieces);
    paused_decodes_ = !pieces.empty();
    if (paused_decodes_) return pieces;
  }
  paused_decodes_ = false;
  // The budget for prompts applies only if there is a decode that a prompt would stall.
  if (std::none_of(running_.begin(), running_.end(), [](const auto* s) { return Decodes(*s); })) prompt_budget = INT64_MAX;
  ScheduleRunning(&budget, &prompt_budget, &pieces);
  AdmitWaiting(&budget, &prompt_budget, &pieces);
  return pieces;
}

bool Scheduler::SortsWaiting() const {
  return config_.policy == SchedulingPolicy::kPriority || config_.policy == SchedulingPolicy::kShortestRemaining ||
         config_.policy == SchedulingPolicy::kLongestPrefix || config_.policy == SchedulingPolicy::kCustom;
}

// Orders the queue by the policy. Running sequences keep running.
void Scheduler::OrderWaiting() {
  if (!SortsWaiting() || waiting_.size() < 2) return;
  for (ScheduledSequence* sequence : waiting_) {
    if (config_.policy == SchedulingPolicy::kShortestRemaining) {
      sequence->key = {static_cast<double>(Missing(*sequence) + sequence->max_new_tokens)};
    } else if (config_.policy == SchedulingPolicy::kLongestPrefix) {
      const int64_t num_cached = cache_->MatchPrefix(Tokens(*sequence), MostCached(*sequence), sequence->cache_salt);
      sequence->key = {-static_cast<double>(num_cached)};
    }
  }
  const bool by_key = config_.policy != SchedulingPolicy::kPriority;
  std::stable_sort(waiting_.begin(), waiting_.end(), [&](const ScheduledSequence* a, const ScheduledSequence* b) {
    if (by_key && !Overtaken(*a) && !Overtaken(*b) && a->key != b->key) return a->key < b->key;
    return Before(a, b);
  });
}

void Scheduler::ScheduleRunning(int64_t* budget, int64_t* prompt_budget, std::vector<ScheduledPiece>* pieces) {
  size_t num_counted = 0;
  int64_t behind = 0;
  for (size_t i = 0; i < running_.size(); ++i) {
    ScheduledSequence* sequence = running_[i];
    if (num_counted != running_.size()) {  // in the first iteration, and after a preemption
      num_counted = running_.size();
      behind = 0;
      for (size_t j = i; j < num_counted; ++j) behind += 1 + Drafted(*running_[j]);
    }
    // One token and its draft are set aside for each running sequence after this one.
    behind -= 1 + Drafted(*sequence);
    // A finished row of a static batch computes its last token again, into the same slot.
    if (sequence->finished) cache_->TryRollback(&sequence->kv, 1);
    const int64_t most = MostAtOnce(*sequence);
    ScheduledPiece piece = {sequence, std::min(most, std::max<int64_t>(*budget - behind, *budget > 0 ? 1 : 0)), Drafted(*sequence)};
    const bool is_prompt = Missing(*sequence) > 1;
    if (is_prompt) piece.num_new = std::min(piece.num_new, *prompt_budget);
    if (!config_.chunked_prefill && piece.num_new < most) piece.num_new = most;
    if (piece.num_new <= 0 && (most > 0 || piece.num_drafted == 0)) continue;
    if (piece.num_drafted > 0 && piece.num_new + piece.num_drafted > *budget && !pieces->empty()) continue;  // it waits a step
    if (!ReserveRunning(&piece, pieces->empty())) continue;
    pieces->push_back(piece);
    *budget -= piece.num_new + piece.num_drafted;
    if (is_prompt) *prompt_budget -= std::min(piece.num_new, *prompt_budget);
  }
}

bool Scheduler::ReserveRunning(ScheduledPiece* piece, bool alone) {
  while (!cache_->TryReserve(&piece->sequence->kv, piece->num_new + piece->num_drafted)) {
    const bool is_last = running_.back() == piece->sequence;
    if (is_last && piece->num_new > 1) {  // no other sequence follows: continue with a smaller piece
      piece->num_new /= 2;
      continue;
    }
    if (is_last && piece->num_drafted > 0 && !alone) return false;  // it waits a step, and keeps its pages
    PreemptLast();
    if (is_last) return false;
  }
  return true;
}

void Scheduler::AdmitWaiting(int64_t* budget, int64_t* prompt_budget, std::vector<ScheduledPiece>* pieces) {
  if (config_.policy == SchedulingPolicy::kStatic && !running_.empty()) return;
  int64_t seats = 0;
  for (const ScheduledSequence* sequence : running_) seats += sequence->num_seats;
  while (!waiting_.empty() && *budget > 0 && *prompt_budget > 0) {
    ScheduledSequence* sequence = waiting_.front();
    if (!running_.empty() && seats + sequence->num_seats > config_.max_num_seqs) break;
    if (sequence->host_copy != nullptr && sequence->kv.num_tokens == 0 && !RestoreCopy(sequence)) break;
    if (sequence->kv.num_tokens == 0) AttachPrefix(sequence);
    if (WaitsForPrefix(*sequence, *pieces)) {  // the prefix cache is searched again in the next step
      GiveBack(sequence);
      break;
    }
    const int64_t most = MostAtOnce(*sequence);
    const int64_t num_drafted = Drafted(*sequence);
    int64_t num_new = std::min({most, *budget, *prompt_budget});
    if (!config_.chunked_prefill && num_new < most) {
      if (!pieces->empty()) break;
      num_new = most;
    }
    if (num_drafted > 0 && num_new + num_drafted > *budget && !pieces->empty()) break;  // it waits a step
    if (!FitsBesideRunning(*sequence, cache_->PagesNeeded(sequence->kv, num_new + num_drafted))) break;
    if (!cache_->TryReserve(&sequence->kv, num_new + num_drafted)) {
      // If no sequence runs, it begins with a smaller piece; later its windows give blocks back.
      while (num_new > 1 && !cache_->TryReserve(&sequence->kv, num_new)) num_new /= 2;
      const int64_t num_rows = num_new + num_drafted;
      if (cache_->PagesNeeded(sequence->kv, num_rows) > 0 && !cache_->TryReserve(&sequence->kv, num_rows)) break;
    }
    waiting_.pop_front();
    sequence->host_copy = nullptr;
    if (sequence->kv.prefix_node != PrefixTree::kNone && sequence->num_preemptions == 0) {
      num_prefix_queries_ += MostCached(*sequence);
      num_prefix_hits_ += sequence->num_cached;
    }
    for (ScheduledSequence* other : waiting_) other->num_overtaken += other->arrival < sequence->arrival ? 1 : 0;
    AddRunning(sequence);
    seats += sequence->num_seats;
    pieces->push_back({sequence, num_new, num_drafted});
    *budget -= num_new + num_drafted;
    *prompt_budget -= std::min(num_new, *prompt_budget);
  }
}

// Whether a sequence that takes num_pages may be admitted: each running sequence keeps a block to grow, so that the admission is not undone
// at once, and all together are not expected to outgrow the pool.
bool Scheduler::FitsBesideRunning(const ScheduledSequence& sequence, int64_t num_pages) const {
  if (running_.empty()) return true;
  const int64_t reserve = cache_->groups().pages_per_block() * num_running();
  return num_pages + reserve <= cache_->num_available() && !OutgrowsPool(sequence);
}

// Copies a preempted sequence's blocks back from the host, unless the prefix cache still has them. Returns false if the sequence must wait
// for free pages.
bool Scheduler::RestoreCopy(ScheduledSequence* sequence) {
  const KvHostCopy& copy = *sequence->host_copy;
  const int64_t known = cache_->MatchPrefix(Tokens(*sequence), MostCached(*sequence), sequence->cache_salt);
  if (known + cache_->groups().block_size() < copy.num_tokens) {
    if (!FitsBesideRunning(*sequence, copy.num_pages + cache_->groups().pages_per_block())) return false;
    GiveBack(sequence);  // releases its pin in the prefix tree, if it has one
    if (cache_->TryRestore(&sequence->kv, copy, Tokens(*sequence), sequence->cache_salt)) {
      num_restored_tokens_ += copy.num_tokens;
    } else {  // no sequence runs and pages are still short: it is computed again, piece by piece
      sequence->host_copy = nullptr;
    }
  }
  return true;
}

// The number of tokens that the sequence is expected to draw still, by the share of their allowance that finished sequences drew.
int64_t Scheduler::ExpectedTokens(const ScheduledSequence& sequence) const {
  const int64_t drawn = sequence.allowance - sequence.max_new_tokens;
  const auto expected = static_cast<int64_t>(drawn_share_ * static_cast<double>(sequence.allowance)) - drawn;
  return std::min(std::max(expected, cache_->groups().block_size()), sequence.max_new_tokens);
}

// Whether pages would run out before some sequence ends, if the newcomer ran, too. All running sequences grow at the same rate, so the need
// peaks just before a sequence ends. At that point each remaining sequence has grown as much as the one that ends, and those that ended
// before have given their blocks back. Groups with a window stop growing and are not counted.
bool Scheduler::OutgrowsPool(const ScheduledSequence& newcomer) const {
  const int64_t block_size = cache_->groups().block_size();
  const auto blocks = [&](int64_t num_tokens) { return (num_tokens + block_size - 1) / block_size; };
  const std::vector<KvGroup>& groups = cache_->groups().groups();
  const auto whole = [](const KvGroup& group) { return group.window == 0; };
  const auto some_group = std::find_if(groups.begin(), groups.end(), whole);
  if (some_group == groups.end()) return false;
  int64_t pages_per_block = 0;
  for (const KvGroup& group : groups) pages_per_block += whole(group) ? group.pages_per_block : 0;
  // The blocks that the sequence holds, including those reserved in this step.
  const auto held = [&](const ScheduledSequence& sequence) {
    const auto num_pages = static_cast<int64_t>(sequence.kv.tables[static_cast<size_t>(some_group - groups.begin())].size());
    return num_pages / some_group->pages_per_block;
  };
  struct End {
    int64_t growth;  // blocks that the sequence takes until it ends
    int64_t seats;
    int64_t given_back;  // blocks that it gives back, without those of a shared prefix
  };
  std::vector<End> ends;
  ends.reserve(running_.size() + 1);
  int64_t free = cache_->num_available() / pages_per_block;
  int64_t seats = 0;
  const auto add = [&](const ScheduledSequence& sequence) {
    const int64_t now = blocks(sequence.num_tokens);
    free -= now - held(sequence);
    seats += sequence.num_seats;
    ends.push_back(
        {blocks(sequence.num_tokens + ExpectedTokens(sequence)) - now, sequence.num_seats, now - sequence.num_cached / block_size});
  };
  for (const ScheduledSequence* sequence : running_) add(*sequence);
  add(newcomer);
  std::sort(ends.begin(), ends.end(), [](const End& a, const End& b) { return a.growth < b.growth; });
  for (const End& end : ends) {
    if (seats * end.growth > free) return true;
    free += end.given_back;
    seats -= end.seats;
  }
  return false;
}

void Scheduler::AttachPrefix(ScheduledSequence* sequence) {
  if (sequence->token_ids == nullptr || sequence->kv.prefix_node != PrefixTree::kNone || !cache_->has_prefix_cache()) return;
  const int64_t found = cache_->AttachPrefix(&sequence->kv, *sequence->token_ids, MostCached(*sequence), sequence->cache_salt);
  if (sequence->num_preemptions == 0) sequence->num_cached = found;
}

// Whether a piece of this step computes at least kWorthWaiting more blocks of the sequence's beginning, which are in the prefix cache from
// the next step on.
bool Scheduler::WaitsForPrefix(const ScheduledSequence& sequence, const std::vector<ScheduledPiece>& pieces) const {
  if (sequence.token_ids == nullptr || sequence.kv.prefix_node == PrefixTree::kNone) return false;
  const int64_t worth = sequence.kv.num_tokens + kWorthWaiting * cache_->groups().block_size();
  if (MostCached(sequence) < worth) return false;
  for (const ScheduledPiece& piece : pieces) {
    const ScheduledSequence& other = *piece.sequence;
    if (piece.num_new == 1 || other.token_ids == nullptr || other.kv.prefix_node == PrefixTree::kNone ||
        other.cache_salt != sequence.cache_salt)
      continue;
    if (other.kv.num_tokens + piece.num_new < worth) continue;
    if (std::equal(sequence.token_ids->begin(), sequence.token_ids->begin() + worth, other.token_ids->begin())) return true;
  }
  return false;
}

void Scheduler::GiveBack(ScheduledSequence* sequence) {
  cache_->Free(&sequence->kv);
  cache_->Init(&sequence->kv);
}

void Scheduler::PreemptLast() {
  ScheduledSequence* victim = running_.back();
  running_.pop_back();
  if (!victim->finished) {
    ++victim->num_preemptions;
    ++num_preemptions_;
    if (swap_rule_ && swap_rule_(*victim)) victim->host_copy = std::make_shared<const KvHostCopy>(cache_->CopyToHost(victim->kv));
  }
  GiveBack(victim);
  if (victim->finished) return;
  Add(victim);
  OrderWaiting();
}

bool Scheduler::PreemptOne() {
  if (running_.empty()) return false;
  PreemptLast();
  return true;
}

bool Scheduler::DropWaitingCache() {
  for (auto waiting = waiting_.rbegin(); waiting != waiting_.rend(); ++waiting) {
    if ((*waiting)->kv.num_tokens == 0) continue;
    GiveBack(*waiting);
    return true;
  }
  return false;
}

void Scheduler::Commit(const std::vector<ScheduledPiece>& pieces) {
  for (const ScheduledPiece& piece : pieces) {
    ScheduledSequence& sequence = *piece.sequence;
    const int64_t begin = sequence.kv.num_tokens;
    cache_->Commit(&sequence.kv, piece.num_new, Tokens(sequence));
    if (!sequence.finished) {
      num_recomputed_tokens_ += std::max<int64_t>(0, std::min(sequence.max_computed, sequence.kv.num_tokens) - begin);
    }
    sequence.max_computed = std::max(sequence.max_computed, sequence.kv.num_tokens);
  }
}

bool Scheduler::Contains(const ScheduledSequence* sequence) const {
  return std::find(running_.begin(), running_.end(), sequence) != running_.end() ||
         std::find(waiting_.begin(), waiting_.end(), sequence) != waiting_.end();
}

void Scheduler::EndStep() {
  if (config_.policy != SchedulingPolicy::kStatic) return;
  const bool all_finished = std::all_of(running_.begin(), running_.end(), [](const auto* s) { return s->finished; });
  if (all_finished) running_.clear();
}

}  // namespace llmi

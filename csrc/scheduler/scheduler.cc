#include "scheduler/scheduler.h"

#include <algorithm>
#include <span>

namespace llmi {
namespace {

constexpr int64_t kWorthWaiting = 4;  // blocks: a sequence waits a step to find this many more in the prefix cache
constexpr int64_t kDrawnMemory = 32;  // the largest weight of the running mean drawn_share_, in sequences

// Calls visit for the sequence and for its companion, if it has one.
template <typename Sequence, typename Visit>
void ForBoth(Sequence& sequence, const Visit& visit) {
  visit(sequence);
  if (sequence.companion != nullptr) visit(*sequence.companion);
}

int64_t MissingAlone(const ScheduledSequence& sequence) { return sequence.num_tokens - sequence.kv.num_tokens; }

// Known tokens that are not computed, the companion's included.
int64_t Missing(const ScheduledSequence& sequence) {
  return MissingAlone(sequence) + (sequence.companion == nullptr ? 0 : MissingAlone(*sequence.companion));
}

// How many of them run together at the end: the last known token, and the companion's.
int64_t NumLast(const ScheduledSequence& sequence) { return sequence.companion == nullptr ? 1 : 2; }

bool IsPrompt(const ScheduledSequence& sequence) { return Missing(sequence) > NumLast(sequence); }

std::span<const int32_t> Tokens(const ScheduledSequence& sequence) {
  return sequence.token_ids == nullptr ? std::span<const int32_t>() : *sequence.token_ids;
}

// Draft rows after the next token. A draft runs only together with the last known token, or after it.
int64_t Drafted(const ScheduledSequence& sequence) { return IsDecode(sequence) ? sequence.num_drafted : 0; }

// Whether it waits for a token (scheduler.h).
bool Idles(const ScheduledSequence& sequence) {
  return !sequence.finished && !sequence.in_flight && Missing(sequence) == 0 && sequence.num_drafted == 0;
}

// Rows of a decode with its draft.
int64_t DecodeRows(const ScheduledSequence& sequence) {
  const bool only_draft = Missing(sequence) == 0 && sequence.num_drafted > 0;
  return only_draft ? sequence.num_drafted : NumLast(sequence) * (1 + Drafted(sequence));
}

// The most tokens of one piece. If the sequence has a draft, its last known token and the draft run in a separate step.
int64_t MostAtOnce(const ScheduledSequence& sequence) {
  return IsPrompt(sequence) && sequence.num_drafted > 0 ? Missing(sequence) - NumLast(sequence) : Missing(sequence);
}

// The piece of num_tokens of the missing tokens, or of fewer: the last tokens of a pair do not run apart. The companion's come first.
ScheduledPiece PieceOf(ScheduledSequence* sequence, int64_t num_tokens) {
  const int64_t num_drafted = Drafted(*sequence);
  if (sequence->companion == nullptr) return {sequence, num_tokens, num_drafted};
  const int64_t missing = MissingAlone(*sequence);
  const int64_t companion_missing = MissingAlone(*sequence->companion);
  if (num_tokens >= missing + companion_missing) return {sequence, missing, num_drafted, companion_missing};
  const int64_t companion = std::clamp<int64_t>(num_tokens, 0, companion_missing - 1);
  return {sequence, std::clamp<int64_t>(num_tokens - companion, 0, missing - 1), num_drafted, companion};
}

bool Overtaken(const ScheduledSequence& sequence) { return sequence.num_overtaken >= kMaxOvertaken; }

template <typename Container>
bool Erase(Container& container, ScheduledSequence* sequence) {
  const auto found = std::find(container.begin(), container.end(), sequence);
  if (found == container.end()) return false;
  container.erase(found);
  return true;
}

}  // namespace

int64_t MostCached(const ScheduledSequence& sequence) {
  return std::min({sequence.num_tokens - 1, sequence.first_wanted_row, sequence.first_streamed_row});
}

bool IsDecode(const ScheduledSequence& sequence) {
  return Missing(sequence) == NumLast(sequence) || (Missing(sequence) == 0 && sequence.num_drafted > 0);
}

bool Scheduler::Before(const ScheduledSequence* a, const ScheduledSequence* b) const {
  if (Overtaken(*a) != Overtaken(*b)) return Overtaken(*a);
  if (config_.policy == SchedulingPolicy::kPriority && a->priority != b->priority) return a->priority < b->priority;
  return a->arrival < b->arrival;
}

void Scheduler::Add(ScheduledSequence* sequence) {
  const KvCache::Unobserved calls(cache_);
  if (calls.observer() != nullptr) calls.observer()->OnAdd(*sequence, false);
  sequence->allowance = std::max(sequence->allowance, sequence->max_new_tokens);
  // A queue that is sorted in each step need not be in order before that.
  const auto place = SortsWaiting()
                         ? waiting_.end()
                         : std::upper_bound(waiting_.begin(), waiting_.end(), sequence, [&](auto* a, auto* b) { return Before(a, b); });
  waiting_.insert(place, sequence);
}

void Scheduler::AddRunning(ScheduledSequence* sequence) {
  const KvCache::Unobserved calls(cache_);
  if (calls.observer() != nullptr) calls.observer()->OnAdd(*sequence, true);
  sequence->allowance = std::max(sequence->allowance, sequence->max_new_tokens);
  const auto place = std::upper_bound(running_.begin(), running_.end(), sequence, [&](auto* a, auto* b) { return Before(a, b); });
  running_.insert(place, sequence);
}

void Scheduler::Remove(ScheduledSequence* sequence) {
  const KvCache::Unobserved calls(cache_);
  if (calls.observer() != nullptr) calls.observer()->OnRemove(*sequence);
  if (!Erase(running_, sequence)) Erase(waiting_, sequence);
  const int64_t drawn = sequence->allowance - sequence->max_new_tokens;
  if (drawn <= 0) return;
  num_left_ = std::min(num_left_ + 1, kDrawnMemory);
  drawn_share_ += (static_cast<double>(drawn) / static_cast<double>(sequence->allowance) - drawn_share_) / static_cast<double>(num_left_);
}

void Scheduler::ForgetLengths() {
  drawn_share_ = 0.5;
  num_left_ = 1;
  paused_decodes_ = false;
}

std::vector<ScheduledPiece> Scheduler::Schedule(int64_t prompt_budget) {
  const KvCache::Unobserved calls(cache_);
  if (calls.observer() != nullptr) calls.observer()->OnSchedule(*this, prompt_budget);
  std::vector<ScheduledPiece> pieces = Choose(prompt_budget);
  if (calls.observer() != nullptr) calls.observer()->OnScheduled(pieces);
  return pieces;
}

std::vector<ScheduledPiece> Scheduler::Choose(int64_t prompt_budget) {
  std::vector<ScheduledPiece> pieces;
  int64_t budget = config_.max_num_batched_tokens;
  OrderWaiting();
  if (config_.policy == SchedulingPolicy::kPrefillFirst) {
    // First the prompts of running sequences, then waiting ones; decodes run only if no prompt is left to compute.
    const auto has_prompt = [](const ScheduledSequence* s) { return IsPrompt(*s); };
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
  if (std::none_of(running_.begin(), running_.end(), [](const auto* s) { return IsDecode(*s); })) prompt_budget = INT64_MAX;
  ScheduleRunning(&budget, &prompt_budget, &pieces);
  AdmitWaiting(&budget, &prompt_budget, &pieces);
  // Idle sequences alone may hold the pages that the waiting ones need.
  while (pieces.empty() && !waiting_.empty() && PreemptIdle()) AdmitWaiting(&budget, &prompt_budget, &pieces);
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
      const int64_t num_cached = cache_->MatchPrefix(Tokens(*sequence), MostCached(*sequence), sequence->cache_salt, sequence->kv.view);
      sequence->key = {-static_cast<double>(num_cached)};
    }
  }
  const bool by_key = config_.policy != SchedulingPolicy::kPriority;
  std::stable_sort(waiting_.begin(), waiting_.end(), [&](const ScheduledSequence* a, const ScheduledSequence* b) {
    if (by_key && !Overtaken(*a) && !Overtaken(*b) && a->key != b->key) return a->key < b->key;
    return Before(a, b);
  });
}

// Whether all rows of a static batch have ended: it leaves when no step is under way.
bool Scheduler::BatchHasEnded() const {
  return config_.policy == SchedulingPolicy::kStatic &&
         std::ranges::all_of(running_, [](const ScheduledSequence* s) { return s->finished || Idles(*s); });
}

void Scheduler::ScheduleRunning(int64_t* budget, int64_t* prompt_budget, std::vector<ScheduledPiece>* pieces) {
  if (BatchHasEnded()) return;
  size_t num_counted = 0;
  int64_t behind = 0;
  const auto busy = std::ranges::count_if(running_, [](const ScheduledSequence* s) { return !Idles(*s); });
  const auto most_together = static_cast<size_t>((busy + config_.num_in_flight - 1) / config_.num_in_flight);
  for (size_t i = 0; i < running_.size(); ++i) {
    ScheduledSequence* sequence = running_[i];
    if (num_counted != running_.size()) {  // in the first iteration, and after a preemption
      num_counted = running_.size();
      behind = 0;
      for (size_t j = i; j < num_counted; ++j) behind += Idles(*running_[j]) || running_[j]->in_flight ? 0 : DecodeRows(*running_[j]);
    }
    if (Idles(*sequence) || sequence->in_flight) continue;
    if (pieces->size() >= most_together && config_.num_in_flight > 1) break;
    // One token and its draft are set aside for each running sequence after this one.
    behind -= DecodeRows(*sequence);
    // A finished row of a static batch computes its last token again, into the same slot.
    if (sequence->finished) ForBoth(*sequence, [&](ScheduledSequence& part) { cache_->TryRollback(&part.kv, 1); });
    const int64_t most = MostAtOnce(*sequence);
    const int64_t least = IsDecode(*sequence) ? NumLast(*sequence) : 1;
    int64_t num_tokens = std::min(most, std::max<int64_t>(*budget - behind, *budget > 0 ? least : 0));
    const bool is_prompt = IsPrompt(*sequence);
    if (is_prompt) num_tokens = std::min(num_tokens, *prompt_budget);
    if (!config_.chunked_prefill && num_tokens < most) num_tokens = most;
    ScheduledPiece piece = PieceOf(sequence, num_tokens);
    if (piece.num_tokens() <= 0 && (most > 0 || piece.num_drafted == 0)) continue;
    const bool whole = IsDecode(*sequence) && (piece.num_rows() > 1 || most == 0);  // it runs whole, or waits a step
    if (whole && piece.num_rows() > *budget && !pieces->empty()) continue;
    const bool reserved = ReserveRunning(&piece, pieces->empty());
    // Sequences before this one may have left.
    const auto place = std::find(running_.begin(), running_.end(), sequence);
    if (place == running_.end()) break;
    i = static_cast<size_t>(place - running_.begin());
    if (!reserved) continue;
    pieces->push_back(piece);
    *budget -= piece.num_rows();
    if (is_prompt) *prompt_budget -= std::min(piece.num_tokens(), *prompt_budget);
  }
}

// Reserves the slots of the piece's rows, or none.
bool Scheduler::TryReserve(const ScheduledPiece& piece) {
  KvSequence& kv = piece.sequence->kv;
  const auto reserve = [&](KvSequence* part, int64_t num_new) {
    return cache_->TryReserve(part, num_new + piece.num_drafted, KvCache::Reclaim::kAll, piece.num_drafted);
  };
  if (!reserve(&kv, piece.num_new)) return false;
  if (piece.sequence->companion == nullptr || reserve(&piece.sequence->companion->kv, piece.num_companion)) return true;
  cache_->Trim(&kv);
  return false;
}

int64_t Scheduler::PagesNeeded(const ScheduledPiece& piece) const {
  const int64_t num_pages = cache_->PagesNeeded(piece.sequence->kv, piece.num_new + piece.num_drafted);
  if (piece.sequence->companion == nullptr) return num_pages;
  return num_pages + cache_->PagesNeeded(piece.sequence->companion->kv, piece.num_companion + piece.num_drafted);
}

bool Scheduler::ReserveRunning(ScheduledPiece* piece, bool alone) {
  ScheduledSequence* sequence = piece->sequence;
  while (!TryReserve(*piece)) {
    if (PreemptIdle()) continue;
    const bool is_last = LastFree() == sequence;
    if (is_last && piece->num_tokens() > 1 && !IsDecode(*sequence)) {  // no other sequence follows: continue with a smaller piece
      *piece = PieceOf(sequence, piece->num_tokens() / 2);
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
    ForBoth(*sequence, [&](ScheduledSequence& part) {
      if (part.kv.num_tokens == 0) AttachPrefix(&part);
    });
    if (WaitsForPrefix(*sequence, *pieces)) {  // the prefix cache is searched again in the next step
      GiveBack(sequence);
      break;
    }
    const int64_t most = MostAtOnce(*sequence);
    int64_t num_tokens = std::min({most, *budget, *prompt_budget});
    if (!config_.chunked_prefill && num_tokens < most) {
      if (!pieces->empty()) break;
      num_tokens = most;
    }
    // The last tokens of a pair may exceed the budget of an empty step.
    if (pieces->empty() && IsDecode(*sequence)) num_tokens = most;
    ScheduledPiece piece = PieceOf(sequence, num_tokens);
    if (piece.num_tokens() <= 0) break;
    const bool whole = IsDecode(*sequence) && piece.num_rows() > 1;
    if (whole && piece.num_rows() > *budget && !pieces->empty()) break;  // it waits a step
    if (!FitsBesideRunning(*sequence, PagesNeeded(piece))) break;
    if (!ReserveWaiting(&piece)) break;
    waiting_.pop_front();
    sequence->host_copy = nullptr;
    if (sequence->num_preemptions == 0) {
      ForBoth(*sequence, [&](const ScheduledSequence& part) {
        if (part.kv.prefix_node == PrefixTree::kNone) return;
        num_prefix_queries_ += MostCached(part);
        num_prefix_hits_ += part.num_cached;
      });
    }
    for (ScheduledSequence* other : waiting_) other->num_overtaken += other->arrival < sequence->arrival ? 1 : 0;
    AddRunning(sequence);
    seats += sequence->num_seats;
    pieces->push_back(piece);
    *budget -= piece.num_rows();
    *prompt_budget -= std::min(piece.num_tokens(), *prompt_budget);
  }
}

// Reserves blocks for the first piece of a waiting sequence, or for a smaller one. Returns false if the sequence must wait.
bool Scheduler::ReserveWaiting(ScheduledPiece* piece) {
  ScheduledSequence* sequence = piece->sequence;
  if (sequence->companion != nullptr) admitted_ = sequence;
  bool reserved = TryReserve(*piece);
  // If no sequence runs, it begins with a smaller piece; later its windows give blocks back.
  while (!reserved && piece->num_tokens() > 1 && !IsDecode(*sequence)) {
    *piece = PieceOf(sequence, piece->num_tokens() / 2);
    reserved = TryReserve(*piece);
  }
  admitted_ = nullptr;
  return reserved;
}

// Whether a sequence that takes num_pages may be admitted: each running sequence keeps a block to grow, so that the admission is not undone
// at once, and all together are not expected to outgrow the pool.
bool Scheduler::FitsBesideRunning(const ScheduledSequence& sequence, int64_t num_pages) const {
  if (running_.empty()) return true;
  const StatePool* states = cache_->states();
  if (states != nullptr && states->slots().num_free() + states->slots().num_cached() == 0) return false;
  int64_t reserve = 0;
  for (const ScheduledSequence* other : running_) reserve += cache_->groups().pages_per_block() * NumLast(*other);
  return num_pages + reserve <= cache_->num_available() && !OutgrowsPool(sequence);
}

// Copies a preempted sequence's blocks back from the host, unless the prefix cache still has them. Returns false if the sequence must wait
// for free pages.
bool Scheduler::RestoreCopy(ScheduledSequence* sequence) {
  const KvHostCopy& copy = *sequence->host_copy;
  const int64_t known = cache_->MatchPrefix(Tokens(*sequence), MostCached(*sequence), sequence->cache_salt, sequence->kv.view);
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
// before have given their blocks back. Groups with a window stop growing and are not counted, and a sequence that streams grows no further
// than its view.
bool Scheduler::OutgrowsPool(const ScheduledSequence& newcomer) const {
  const int64_t block_size = cache_->groups().block_size();
  const auto blocks = [&](const ScheduledSequence& sequence, int64_t num_tokens) {
    const SparseView& view = sequence.kv.view;
    const int64_t whole = (num_tokens + block_size - 1) / block_size;
    if (!view.streams()) return whole;
    const int64_t passed = std::max<int64_t>(0, num_tokens + 1 - view.recent) / block_size;
    return whole - std::max<int64_t>(0, passed - cache_->groups().NumSinkBlocks(view));
  };
  const std::vector<KvGroup>& groups = cache_->groups().groups();
  const auto whole = [](const KvGroup& group) { return group.window == 0; };
  const auto some_group = std::find_if(groups.begin(), groups.end(), whole);
  if (some_group == groups.end()) return false;
  int64_t pages_per_block = 0;
  for (const KvGroup& group : groups) pages_per_block += whole(group) ? group.pages_per_block : 0;
  // The blocks that the sequence holds, including those reserved in this step.
  const auto held = [&](const ScheduledSequence& sequence) {
    const auto group = static_cast<size_t>(some_group - groups.begin());
    const auto num_pages = static_cast<int64_t>(sequence.kv.tables[group].size());
    return num_pages / some_group->pages_per_block - (num_pages > 0 ? cache_->NumReturned(sequence.kv, group) : 0);
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
    int64_t given_back = 0;
    ForBoth(sequence, [&](const ScheduledSequence& part) {
      const int64_t now = blocks(part, part.num_tokens);
      free -= now - held(part);
      given_back += std::max<int64_t>(0, now - part.num_cached / block_size);
    });
    seats += sequence.num_seats;
    const int64_t growth = blocks(sequence, sequence.num_tokens + ExpectedTokens(sequence)) - blocks(sequence, sequence.num_tokens);
    ends.push_back({growth, sequence.num_seats, given_back});
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
  bool waits = false;
  ForBoth(sequence, [&](const ScheduledSequence& part) {
    if (part.token_ids == nullptr || part.kv.prefix_node == PrefixTree::kNone) return;
    const int64_t least = part.kv.num_tokens + kWorthWaiting * cache_->groups().block_size();
    if (MostCached(part) < least) return;
    const auto computes = [&](const ScheduledSequence& other, int64_t num_new) {
      if (num_new <= 1 || other.token_ids == nullptr || other.kv.prefix_node == PrefixTree::kNone) return false;
      // With states it finds what ends where the other leaves one.
      const int64_t worth = cache_->states() == nullptr ? least : other.kv.state.snapshot_at;
      if (worth < least || worth > MostCached(part)) return false;
      if (other.cache_salt != part.cache_salt || other.kv.num_tokens + num_new < worth) return false;
      return std::equal(part.token_ids->begin(), part.token_ids->begin() + worth, other.token_ids->begin());
    };
    waits = waits || std::any_of(pieces.begin(), pieces.end(), [&](const ScheduledPiece& piece) {
              if (computes(*piece.sequence, piece.num_new)) return true;
              return piece.sequence->companion != nullptr && computes(*piece.sequence->companion, piece.num_companion);
            });
  });
  return waits;
}

void Scheduler::GiveBack(ScheduledSequence* sequence) {
  ForBoth(*sequence, [&](ScheduledSequence& part) {
    cache_->Free(&part.kv);
    cache_->Init(&part.kv);
  });
}

// The running sequence that is last in precedence, of those that no step computes now; null: there is none.
ScheduledSequence* Scheduler::LastFree() const {
  const auto last = std::find_if(running_.rbegin(), running_.rend(), [](const ScheduledSequence* s) { return !s->in_flight; });
  return last == running_.rend() ? nullptr : *last;
}

void Scheduler::PreemptLast() {
  ScheduledSequence* victim = LastFree();
  Erase(running_, victim);
  Preempt(victim);
}

// Preempts the idle sequence that is last in precedence. Returns false if none idles.
bool Scheduler::PreemptIdle() {
  const auto idle = std::find_if(running_.rbegin(), running_.rend(), [](const ScheduledSequence* s) { return Idles(*s); });
  if (idle == running_.rend()) return false;
  ScheduledSequence* victim = *idle;
  running_.erase(std::next(idle).base());
  Preempt(victim);
  return true;
}

// Gives back the pages of a sequence that has left the running ones. It waits, unless it has finished or idles.
void Scheduler::Preempt(ScheduledSequence* victim) {
  if (!victim->finished) {
    ForBoth(*victim, [](ScheduledSequence& part) { ++part.num_preemptions; });
    ++num_preemptions_;
    if (victim->companion == nullptr && swap_rule_ && swap_rule_(*victim))
      victim->host_copy = std::make_shared<const KvHostCopy>(cache_->CopyToHost(victim->kv));
  }
  const bool idles = Idles(*victim);
  GiveBack(victim);
  if (victim->finished || idles) return;
  Add(victim);
  OrderWaiting();
}

bool Scheduler::PreemptOne() {
  if (LastFree() == nullptr) return false;
  const KvCache::Unobserved calls(cache_);
  if (calls.observer() != nullptr) calls.observer()->OnOther();
  PreemptLast();
  return true;
}

bool Scheduler::DropWaitingCache() {
  const KvCache::Unobserved calls(cache_);
  for (auto waiting = waiting_.rbegin(); waiting != waiting_.rend(); ++waiting) {
    const ScheduledSequence& sequence = **waiting;
    if (&sequence == admitted_) continue;
    if (sequence.kv.num_tokens == 0 && (sequence.companion == nullptr || sequence.companion->kv.num_tokens == 0)) continue;
    GiveBack(*waiting);
    return true;
  }
  return false;
}

void Scheduler::Commit(const std::vector<ScheduledPiece>& pieces) {
  const KvCache::Unobserved calls(cache_);
  if (calls.observer() != nullptr) calls.observer()->OnCommit(pieces);
  for (const ScheduledPiece& piece : pieces) {
    ScheduledSequence& sequence = *piece.sequence;
    CommitPart(sequence, piece.num_new, sequence.finished);
    if (sequence.companion != nullptr) CommitPart(*sequence.companion, piece.num_companion, sequence.finished);
  }
}

void Scheduler::CommitPart(ScheduledSequence& sequence, int64_t num_new, bool finished) {
  const int64_t begin = sequence.kv.num_tokens;
  cache_->Commit(&sequence.kv, num_new, Tokens(sequence));
  if (!finished) num_recomputed_tokens_ += std::max<int64_t>(0, std::min(sequence.max_computed, sequence.kv.num_tokens) - begin);
  sequence.max_computed = std::max(sequence.max_computed, sequence.kv.num_tokens);
}

bool Scheduler::Contains(const ScheduledSequence* sequence) const {
  return std::find(running_.begin(), running_.end(), sequence) != running_.end() ||
         std::find(waiting_.begin(), waiting_.end(), sequence) != waiting_.end();
}

void Scheduler::EndStep() {
  const KvCache::Unobserved calls(cache_);
  if (calls.observer() != nullptr) calls.observer()->OnEndStep(*this);
  if (!BatchHasEnded() || std::ranges::any_of(running_, &ScheduledSequence::in_flight)) return;
  std::erase_if(running_, [](const auto* s) { return s->finished; });
}

}  // namespace llmi

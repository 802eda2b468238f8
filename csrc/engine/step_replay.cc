#include "engine/step_replay.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/errors.h"
#include "engine/step_recorder.h"

namespace llmi {
namespace {

constexpr int64_t kMost = int64_t{1} << 31;

}  // namespace

StepReplay::StepReplay(const KvGroups& groups, int64_t num_pages, const SchedulerConfig& config, bool prefix_caching)
    : cache_(groups, num_pages, nullptr, {}, false), scheduler_(config, &cache_) {
  if (prefix_caching) cache_.EnablePrefixCache(1);
  cache_.set_reclaimer([this] { return scheduler_.DropWaitingCache(); });
}

StepReplay::~StepReplay() {
  for (auto& [id, entry] : entries_) cache_.Free(&entry->scheduled.kv);
}

StepReplay::Entry& StepReplay::Known(int64_t id) {
  std::unique_ptr<Entry>& entry = entries_[id];
  if (entry == nullptr) {
    entry = std::make_unique<Entry>();
    entry->id = id;
    owners_[&entry->scheduled] = entry.get();
  }
  return *entry;
}

StepReplay::Entry& StepReplay::Held(int64_t id) {
  Entry& entry = Known(id);
  CheckArgument(entry.is_held, "the sequence holds no cache");
  return entry;
}

void StepReplay::Init(int64_t id) {
  Entry& entry = Known(id);
  CheckArgument(!entry.is_held, "the sequence holds a cache already");
  cache_.Init(&entry.scheduled.kv);
  entry.is_held = true;
}

void StepReplay::Fork(int64_t parent, int64_t child) {
  Entry& entry = Known(child);
  CheckArgument(!entry.is_held, "the sequence holds a cache already");
  cache_.Fork(Held(parent).scheduled.kv, &entry.scheduled.kv);
  entry.is_held = true;
}

void StepReplay::Free(int64_t id) {
  Entry& entry = Known(id);
  if (!entry.is_held) return;
  const auto queued = [&](const auto& queue) {
    return std::any_of(queue.begin(), queue.end(),
                       [&](const auto* other) { return other == &entry.scheduled || other->companion == &entry.scheduled; });
  };
  CheckArgument(!queued(scheduler_.running()) && !queued(scheduler_.waiting()), "the sequence is queued");
  cache_.Free(&entry.scheduled.kv);
  entry.is_held = false;
}

bool StepReplay::Reserve(int64_t id, int64_t num_new, bool cache_only, int64_t num_drafted) {
  CheckArgument(0 <= num_drafted && num_drafted <= num_new && num_new < kMost, "no number of slots");
  return cache_.TryReserve(&Held(id).scheduled.kv, num_new, cache_only ? KvCache::Reclaim::kCacheOnly : KvCache::Reclaim::kAll,
                           num_drafted);
}

// Only slots that are reserved, of tokens that are known, can be committed.
void StepReplay::CheckCommit(const Entry& entry, int64_t num_new, bool is_indexed) const {
  const KvSequence& kv = entry.scheduled.kv;
  const int64_t end = kv.num_tokens + num_new;
  bool fits = 0 <= num_new && num_new < kMost && (!is_indexed || end <= static_cast<int64_t>(entry.tokens.size()));
  for (size_t g = 0; g < kv.tables.size(); ++g) {
    const int64_t slots = static_cast<int64_t>(kv.tables[g].size()) / cache_.groups().groups()[g].pages_per_block;
    fits = fits && end <= slots * cache_.groups().block_size();
  }
  CheckArgument(fits, "more tokens than are reserved, or known");
}

void StepReplay::Keep(int64_t id, int64_t num_new, bool is_indexed) {
  Entry& entry = Held(id);
  CheckCommit(entry, num_new, is_indexed);
  cache_.Commit(&entry.scheduled.kv, num_new, is_indexed ? std::span<const int32_t>(entry.tokens) : std::span<const int32_t>());
}

void StepReplay::Rollback(int64_t id, int64_t num_tokens) {
  CheckArgument(cache_.TryRollback(&Held(id).scheduled.kv, num_tokens), "rollback: the blocks were given back");
}

void StepReplay::Trim(int64_t id) { cache_.Trim(&Held(id).scheduled.kv); }

void StepReplay::New(int64_t id, const std::string& salt) {
  Entry& entry = Known(id);
  CheckArgument(!scheduler_.Contains(&entry.scheduled), "the sequence is queued");
  KvSequence kv = std::move(entry.scheduled.kv);
  entry.scheduled = {};
  entry.scheduled.kv = std::move(kv);
  entry.scheduled.cache_salt = salt;
  entry.scheduled.token_ids = &entry.tokens;
  entry.tokens.clear();
}

void StepReplay::Set(int64_t id, const std::string& field, int64_t value) {
  bool found = false;
  VisitRecorded(Known(id).scheduled, [&](const char* name, auto& target) {
    if (field != name) return;
    target = static_cast<std::remove_reference_t<decltype(target)>>(value);
    found = true;
  });
  CheckArgument(found, "set: no such field");
}

void StepReplay::SetTokens(int64_t id, int64_t num_kept, const std::vector<int32_t>& behind) {
  std::vector<int32_t>& tokens = Known(id).tokens;
  CheckArgument(0 <= num_kept && num_kept <= static_cast<int64_t>(tokens.size()), "tokens: more kept than there are");
  tokens.resize(static_cast<size_t>(num_kept));
  tokens.insert(tokens.end(), behind.begin(), behind.end());
}

void StepReplay::SetKey(int64_t id, std::vector<double> key) {
  CheckArgument(std::all_of(key.begin(), key.end(), [](double value) { return std::isfinite(value); }), "key: a number is not finite");
  Known(id).scheduled.key = std::move(key);
}

void StepReplay::Pair(int64_t id, int64_t companion) {
  Entry& entry = Known(id);
  Entry& other = Known(companion);
  CheckArgument(id != companion && other.scheduled.companion == nullptr && !scheduler_.Contains(&entry.scheduled), "pair: no such pair");
  entry.scheduled.companion = &other.scheduled;
}

void StepReplay::Add(int64_t id, bool is_running) {
  Entry& entry = Held(id);
  CheckArgument(!scheduler_.Contains(&entry.scheduled), "the sequence is queued already");
  CheckQueued(entry.scheduled);
  is_running ? scheduler_.AddRunning(&entry.scheduled) : scheduler_.Add(&entry.scheduled);
}

// What the scheduler relies on.
void StepReplay::CheckQueued(const ScheduledSequence& sequence) const {
  const Entry& entry = *owners_.at(&sequence);
  const bool counts =
      sequence.kv.num_tokens <= sequence.num_tokens && 1 <= sequence.num_tokens &&
      sequence.num_tokens <= static_cast<int64_t>(entry.tokens.size()) && 0 <= sequence.max_new_tokens && sequence.max_new_tokens < kMost &&
      0 <= sequence.num_drafted && sequence.num_drafted < kMost && 1 <= sequence.num_seats && sequence.num_seats < kMost &&
      0 <= sequence.kv.side_bytes && sequence.kv.side_bytes < kMost && 0 <= sequence.kv.view.sinks && sequence.kv.view.sinks < kMost &&
      0 <= sequence.kv.view.recent && sequence.kv.view.recent < kMost && 0 <= sequence.first_wanted_row && 0 <= sequence.first_streamed_row;
  CheckArgument(entry.is_held && counts, "a queued sequence has counts that no engine gives it");
  if (sequence.companion != nullptr) CheckQueued(*sequence.companion);
}

std::vector<StepReplay::Piece> StepReplay::Schedule(int64_t prompt_budget) {
  CheckArgument(prompt_budget >= 0, "a negative budget");
  for (const ScheduledSequence* sequence : scheduler_.running()) CheckQueued(*sequence);
  for (const ScheduledSequence* sequence : scheduler_.waiting()) CheckQueued(*sequence);
  std::vector<Piece> pieces;
  for (const ScheduledPiece& piece : scheduler_.Schedule(prompt_budget)) {
    pieces.push_back({owners_.at(piece.sequence)->id, piece.num_new, piece.num_drafted, piece.num_companion});
  }
  return pieces;
}

void StepReplay::Commit(const std::vector<Piece>& pieces) {
  std::vector<ScheduledPiece> all;
  for (const Piece& piece : pieces) {
    Entry& entry = Held(piece.id);
    CheckCommit(entry, piece.num_new, true);
    if (entry.scheduled.companion != nullptr) CheckCommit(*owners_.at(entry.scheduled.companion), piece.num_companion, true);
    all.push_back({&entry.scheduled, piece.num_new, piece.num_drafted, piece.num_companion});
  }
  scheduler_.Commit(all);
}

}  // namespace llmi

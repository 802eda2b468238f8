// The calls of a recording (step_recorder.h), made to a scheduler and a cache without memory. Calls come from files: what could reach past
// a table is refused.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "cache/kv_cache.h"
#include "scheduler/scheduler.h"

namespace llmi {

class StepReplay {
 public:
  struct Piece {
    int64_t id, num_new, num_drafted, num_companion;
  };

  StepReplay(const KvGroups& groups, int64_t num_pages, const SchedulerConfig& config, bool prefix_caching);
  ~StepReplay();
  StepReplay(const StepReplay&) = delete;
  StepReplay& operator=(const StepReplay&) = delete;

  // Each throws Error(kInvalidArgument) for a call that the engine cannot have made.
  void Init(int64_t id);
  void Fork(int64_t parent, int64_t child);
  void Free(int64_t id);
  bool Reserve(int64_t id, int64_t num_new, bool cache_only, int64_t num_drafted);
  void Keep(int64_t id, int64_t num_new, bool is_indexed);
  void Rollback(int64_t id, int64_t num_tokens);
  void Trim(int64_t id);
  void Clear() { cache_.ClearPrefixCache(); }
  void New(int64_t id, const std::string& salt);
  void Set(int64_t id, const std::string& field, int64_t value);
  void SetTokens(int64_t id, int64_t num_kept, const std::vector<int32_t>& behind);
  void SetKey(int64_t id, std::vector<double> key);
  void Pair(int64_t id, int64_t companion);
  void Add(int64_t id, bool is_running);
  void Remove(int64_t id) { scheduler_.Remove(&Held(id).scheduled); }
  std::vector<Piece> Schedule(int64_t prompt_budget);
  void Commit(const std::vector<Piece>& pieces);
  void EndStep() { scheduler_.EndStep(); }
  int64_t num_available() const { return cache_.num_available(); }

 private:
  struct Entry {
    int64_t id = 0;
    bool is_held = false;  // the cache knows it
    std::vector<int32_t> tokens;
    ScheduledSequence scheduled;
  };
  Entry& Known(int64_t id);
  Entry& Held(int64_t id);
  void CheckCommit(const Entry& entry, int64_t num_new, bool is_indexed) const;
  void CheckQueued(const ScheduledSequence& sequence) const;

  KvCache cache_;
  Scheduler scheduler_;
  std::unordered_map<int64_t, std::unique_ptr<Entry>> entries_;
  std::unordered_map<const ScheduledSequence*, Entry*> owners_;
};

}  // namespace llmi

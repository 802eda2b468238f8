// Who sees the calls that the engine makes to its KV cache and its scheduler, in order: the recorder of steps. Calls that one of these two
// makes to the other follow from them, and are not seen.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace llmi {

struct KvSequence;
class Scheduler;
struct ScheduledPiece;
struct ScheduledSequence;

class CallObserver {
 public:
  virtual ~CallObserver() = default;
  // --- KvCache.
  virtual void OnInit(const KvSequence& kv) = 0;
  virtual void OnFork(const KvSequence& parent, const KvSequence& child) = 0;
  virtual void OnFree(const KvSequence& kv) = 0;
  virtual void OnReserve(const KvSequence& kv, int64_t num_new, bool cache_only, int64_t num_drafted, bool reserved) = 0;
  virtual void OnCommit(const KvSequence& kv, int64_t num_new, std::span<const int32_t> token_ids) = 0;
  virtual void OnRollback(const KvSequence& kv, int64_t num_tokens) = 0;
  virtual void OnTrim(const KvSequence& kv) = 0;
  virtual void OnClear() = 0;
  // --- Scheduler.
  virtual void OnAdd(const ScheduledSequence& sequence, bool is_running) = 0;
  virtual void OnRemove(const ScheduledSequence& sequence) = 0;
  virtual void OnSchedule(const Scheduler& scheduler, int64_t prompt_budget) = 0;  // before it
  virtual void OnScheduled(const std::vector<ScheduledPiece>& pieces) = 0;
  virtual void OnCommit(const std::vector<ScheduledPiece>& pieces) = 0;
  virtual void OnEndStep(const Scheduler& scheduler) = 0;
  // A call that no request makes: of the lab, or when ranks were started again.
  virtual void OnOther() = 0;
};

}  // namespace llmi

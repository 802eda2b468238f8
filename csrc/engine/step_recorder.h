// Writes what the engine asks of its scheduler and cache, one line of JSON for each arrival and each step, so that a scheduler without a
// model can do the same (step_replay.h). Engine thread only.
#pragma once

#include <cstdint>
#include <fstream>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "cache/call_observer.h"
#include "cache/kv_cache.h"
#include "scheduler/scheduler.h"

namespace llmi {

// Calls visit(name, field) for all that the engine sets of a sequence and the scheduler reads, but its tokens, key, salt and companion.
template <typename Sequence, typename Visit>
void VisitRecorded(Sequence& sequence, const Visit& visit) {
  visit("arrival", sequence.arrival);
  visit("priority", sequence.priority);
  visit("num_seats", sequence.num_seats);
  visit("num_tokens", sequence.num_tokens);
  visit("max_new_tokens", sequence.max_new_tokens);
  visit("first_wanted_row", sequence.first_wanted_row);
  visit("first_streamed_row", sequence.first_streamed_row);
  visit("num_drafted", sequence.num_drafted);
  visit("finished", sequence.finished);
  visit("side_bytes", sequence.kv.side_bytes);
  visit("view_sinks", sequence.kv.view.sinks);
  visit("view_recent", sequence.kv.view.recent);
  visit("view_best", sequence.kv.view.num_best);
}

class StepRecorder : public CallObserver {
 public:
  // Throws Error(kInvalidArgument) if the file cannot be opened.
  StepRecorder(const std::string& path, const std::string& header, const KvCache& cache);
  // Writes what is left. Throws Error(kInvalidArgument) if some of it could not be written.
  void Close();

  void OnInit(const KvSequence& kv) override;
  void OnFork(const KvSequence& parent, const KvSequence& child) override;
  void OnFree(const KvSequence& kv) override;
  void OnReserve(const KvSequence& kv, int64_t num_new, bool cache_only, int64_t num_drafted, bool reserved) override;
  void OnCommit(const KvSequence& kv, int64_t num_new, std::span<const int32_t> token_ids) override;
  void OnRollback(const KvSequence& kv, int64_t num_tokens) override;
  void OnTrim(const KvSequence& kv) override;
  void OnClear() override;
  void OnAdd(const ScheduledSequence& sequence, bool is_running) override;
  void OnRemove(const ScheduledSequence& sequence) override;
  void OnSchedule(const Scheduler& scheduler, int64_t prompt_budget) override;
  void OnScheduled(const std::vector<ScheduledPiece>& pieces) override;
  void OnCommit(const std::vector<ScheduledPiece>& pieces) override;
  void OnEndStep(const Scheduler& scheduler) override;
  void OnOther() override;

 private:
  // A sequence as the file has it.
  struct Written {
    int64_t id;
    std::vector<int64_t> fields;  // empty: nothing is written yet
    std::vector<int32_t> tokens;
    std::vector<double> key;
  };
  Written& WrittenOf(const KvSequence& kv);
  int64_t IdOf(const KvSequence& kv) { return WrittenOf(kv).id; }
  // An event with these JSON values behind its name.
  void Note(const char* name, const std::string& values);
  void NotePieces(const char* name, const std::vector<ScheduledPiece>& pieces, const std::string& behind);
  // Notes what has changed since the last call. is_new: it is another sequence at the same place; returns whether it is.
  bool Sync(const ScheduledSequence& sequence, bool is_new = false);
  void SyncTokens(Written& written, std::span<const int32_t> tokens);
  void WriteLine(const std::string& fields);

  const std::string path_;
  const KvCache& cache_;
  std::ofstream file_;
  std::unordered_map<const KvSequence*, Written> written_;
  std::string events_;
  const double begin_s_;
  double step_begin_s_ = 0;
  int64_t num_steps_ = 0;
  int64_t num_rows_ = 0;
};

}  // namespace llmi

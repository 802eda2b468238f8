// The engine: a thread that runs the step loop, and the calls that other threads make to it.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "cache/kv_cache.h"
#include "engine/active_requests.h"
#include "engine/request_limits.h"
#include "engine/command_queue.h"
#include "engine/config.h"
#include "engine/costs.h"
#include "engine/detokenizer.h"
#include "engine/inbox.h"
#include "engine/lab.h"
#include "engine/lifetime.h"
#include "engine/request.h"
#include "engine/saved_prefixes.h"
#include "engine/stats.h"
#include "engine/stats_collector.h"
#include "engine/step.h"
#include "engine/step_recorder.h"
#include "kernels/ops/context.h"
#include "model/decoder.h"
#include "model/draft_heads.h"
#include "model/input_sums.h"
#include "scheduler/scheduler.h"
#include "speculative/cost_curve.h"

namespace llmi {

// The block tables of one sequence, for reports.
struct SequenceTables {
  int64_t request_id = -1;  // -1: a sequence of the lab
  int64_t sample_index = 0;
  int64_t num_tokens = 0;                    // computed
  std::vector<std::vector<int32_t>> tables;  // by KV group; -1: given back behind the window
};

struct MemoryTables {
  std::vector<SequenceTables> sequences;
  std::vector<int32_t> references;  // by page
  // The prefix tree's first kMostPrefixNodes nodes, as PrefixTree::Shape gives them.
  static constexpr size_t kMostPrefixNodes = 2048;
  std::vector<std::pair<int32_t, int32_t>> prefix_shape;
};

class Engine {
 public:
  Engine(std::unique_ptr<Decoder> decoder, DraftHeads heads, KernelContext context, EngineConfig config,
         std::shared_ptr<const TokenBytes> tokens);
  ~Engine();  // Close()
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // --- Any thread.
  // Throws Error(kInvalidArgument, kOutOfMemory) if a value is out of range or the request could never run, Error(kClosed) after Close.
  // Nothing is allocated for a request that is refused.
  void Check(const Request& request) const;
  // Queues requests that Check has passed, all at once, so that they meet in the same step; their events go to `channel`. Throws
  // Error(kClosed).
  void Submit(const std::vector<std::shared_ptr<Request>>& requests, const std::shared_ptr<OutputChannel>& channel) {
    inbox_.Submit(requests, channel);
  }
  // Ends these requests; each still gets its finish event.
  void Abort(const std::vector<uint64_t>& request_ids) { inbox_.Abort(request_ids); }
  // Runs one iteration of the loop, for requests with `stepped`; returns false if there was nothing to do. Throws Error(kClosed).
  bool Step() { return inbox_.Step(); }
  // Token sequences that user code extends. Call only the methods of Lab's first part.
  Lab& lab() { return *lab_; }

  // wait: for the engine thread, between two steps. Else the counters are those after the last step; numbers that need a walk over all
  // pages are older.
  EngineStats Stats(bool wait = true);
  // The block tables of everything that holds cache now; none if the engine is closed.
  MemoryTables Tables();
  // Seconds of a step by its number of rows, measured on the engine thread at the first call. Throws like CommandQueue::Execute.
  CostCurve Costs();
  // Which experts the rows of all forwards used. Throws like CommandQueue::Execute.
  ExpertCounts ExpertUses();
  // Sums over what the linear layers read, of all rows from now on; file, only: as InputSums takes them. On the CPU alone, of whole
  // weights. Throws like CommandQueue::Execute.
  void GatherInputs(int file, const std::string& only);
  // The sums, which end with this. Throws like CommandQueue::Execute, and Error(kInvalidArgument) if nothing was begun.
  std::unique_ptr<InputSums> TakeInputs();
  // Writes the blocks of this beginning to prefix_cache_dir, as far as the prefix cache has them; returns their number of tokens. Throws
  // like CommandQueue::Execute, and Error(kInvalidArgument) without such a folder.
  int64_t SavePrefix(std::span<const int32_t> token_ids, const std::string& salt);
  // From now on each arrival and each step is a line of the file, behind the header; the prefix cache and what outputs told of their
  // lengths are forgotten first, as in a new engine. Throws like CommandQueue::Execute, and Error(kInvalidArgument) while requests or
  // sequences are there, and where the schedule depends on more than the calls that are recorded.
  void RecordSteps(const std::string& path, const std::string& header);
  // Throws Error(kInvalidArgument) if the file could not be written.
  void EndRecording();
  // What other engines are asked for; also of an engine that is closed. Nothing is, unless options say so.
  PrefixQuestions& questions() { return questions_; }
  // Forgets all cached beginnings that nobody uses now. Throws like CommandQueue::Execute.
  void ResetPrefixCache();
  const KernelContext& context() const { return context_; }

  // Whether this process is a child of the one that made the engine.
  bool IsForked() const { return life_.IsForked(); }
  bool OnEngineThread() const { return life_.OnEngineThread(); }
  // Throws Error(kClosed) after BeginClose, and in the child of a fork.
  void CheckOpen() const { life_.CheckOpen(); }
  // Asks the thread to end all requests and then itself; those under way fail with Error(kClosed).
  void BeginClose() { life_.BeginClose(); }
  // Waits at most timeout_s for the thread's end; returns whether it has come.
  bool WaitEnded(double timeout_s) { return life_.WaitEnded(timeout_s); }
  // Both, then frees weights and cache. In the child of a fork it does nothing; on the engine thread it only begins to close.
  void Close();
  // The handle of the engine thread.
  std::thread::native_handle_type native_thread() { return thread_.native_handle(); }

 private:
  // --- The engine thread alone.
  void ThreadMain();
  void End();
  void RunStep(bool launches);
  bool HasCommands();
  void ForgetLostPages();
  // Whether there is work. stepped: requests that run only in Step count, too.
  bool MayRun(bool stepped) const;
  void Take(Inbox::Mail& mail);
  void Admit(Sample& leader);
  void AdmitReady();

  std::unique_ptr<Decoder> decoder_;
  KernelContext context_;
  std::unique_ptr<InputSums> inputs_;  // null: nothing is gathered
  const RequestLimits limits_;
  Lifetime life_;
  Inbox inbox_;
  CommandQueue commands_;
  std::unique_ptr<KvCache> cache_;
  std::unique_ptr<Scheduler> scheduler_;
  std::unique_ptr<StepCosts> costs_;
  PrefixQuestions questions_{[this] { inbox_.Post([] {}); }};
  std::unique_ptr<SavedPrefixes> saved_;  // null: blocks do not outlive the engine
  std::unique_ptr<Lab> lab_;
  std::unique_ptr<ActiveRequests> requests_;
  std::unique_ptr<StepLoop> steps_;
  std::unique_ptr<StatsCollector> stats_;
  std::unique_ptr<StepRecorder> recorder_;  // null: nothing is recorded
  bool has_failed_ = false;                 // the engine thread's
  std::mutex close_mutex_;                  // held while the thread is joined
  std::thread thread_;
};

}  // namespace llmi

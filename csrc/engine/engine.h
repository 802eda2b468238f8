// The engine: a thread that runs the step loop over a queue of requests.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "cache/kv_cache.h"
#include "engine/active_requests.h"
#include "engine/config.h"
#include "engine/costs.h"
#include "engine/detokenizer.h"
#include "engine/inbox.h"
#include "engine/lab.h"
#include "engine/request.h"
#include "engine/stats.h"
#include "engine/step.h"
#include "kernels/ops/context.h"
#include "model/decoder.h"
#include "scheduler/scheduler.h"
#include "speculative/length.h"

namespace llmi {

// One sequence's block tables, for reports.
struct SequenceTables {
  int64_t request_id = -1;  // -1: a sequence of the lab
  int64_t sample_index = 0;
  int64_t num_tokens = 0;                    // computed
  std::vector<std::vector<int32_t>> tables;  // by KV group; -1: given back behind the window
};

struct MemoryTables {
  std::vector<SequenceTables> sequences;
  std::vector<int32_t> references;  // by page
};

class Engine {
 public:
  Engine(std::unique_ptr<Decoder> decoder, KernelContext context, EngineConfig config, std::shared_ptr<const TokenBytes> tokens);
  ~Engine();  // Close()
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Throws Error(kInvalidArgument, kOutOfMemory) if a value is out of range or the request could never run,
  // Error(kClosed) after Close. Nothing is allocated for a request that is refused.
  void Check(const Request& request);
  // Queues requests that Check has passed, all at once, so that they meet in the same step; their events go to
  // `channel`. Throws Error(kClosed).
  void Submit(const std::vector<std::shared_ptr<Request>>& requests, const std::shared_ptr<OutputChannel>& channel) {
    inbox_.Submit(requests, channel);
  }
  // Ends these requests; each still gets its finish event.
  void Abort(const std::vector<uint64_t>& request_ids) { inbox_.Abort(request_ids); }
  // Throws Error(kClosed) after Close, and in the child of a fork.
  void CheckOpen() const { inbox_.CheckOpen(); }
  // Whether this process is a child of the one that made the engine.
  bool IsForked() const { return inbox_.IsForked(); }
  // One iteration of the loop, for requests with `stepped`; returns false if there was nothing to do. Throws Error(kClosed).
  bool Step() { return inbox_.Step(); }
  EngineStats Stats();
  // The block tables of everything that holds cache now. Throws like Execute.
  MemoryTables Tables();
  // Seconds of a step by its number of rows, measured on the engine thread at the first call. Throws like Execute.
  CostCurve Costs();
  bool OnEngineThread() const { return inbox_.OnEngineThread(); }
  // Runs `work` on the engine thread, between two steps, and returns when it is done; its exception comes through.
  // Throws Error(kBusy) on the engine thread itself, Error(kClosed) after Close. If check_wait throws, work that has not begun is dropped,
  // and work under way ends at its next CheckCommand.
  void Execute(const std::function<void()>& work) { inbox_.Execute(work); }

  // Forgets all cached beginnings that nobody uses now.
  void ResetPrefixCache();

  // Sequences that user code extends by hand. Any thread may call the methods of Lab's first part; each runs on the engine thread.
  Lab& lab() { return *lab_; }
  const KernelContext& context() const { return context_; }
  // Asks the thread to end all requests and then itself; those under way fail with Error(kClosed).
  void BeginClose() { inbox_.BeginClose(); }
  // Waits at most timeout_s for the thread's end; returns whether it has come.
  bool WaitEnded(double timeout_s) { return inbox_.WaitEnded(timeout_s); }
  // Both, then frees weights and cache. Nothing in the child of a fork; BeginClose alone on the engine thread.
  void Close();
  // Of the engine thread.
  std::thread::native_handle_type native_thread() { return thread_.native_handle(); }

 private:
  void ThreadMain();
  void End();
  bool MayRun(bool stepped) const;
  void Take(Inbox::Mail& mail);
  // Completes the counters and shows them to other threads.
  void PublishStats();

  std::unique_ptr<Decoder> decoder_;
  const int64_t vocab_size_;
  const KvGroups groups_;
  KernelContext context_;
  EngineConfig config_;
  std::unique_ptr<KvCache> cache_;
  std::unique_ptr<Scheduler> scheduler_;
  std::unique_ptr<ActiveRequests> requests_;
  std::unique_ptr<Lab> lab_;
  std::unique_ptr<StepCosts> costs_;
  std::unique_ptr<StepLoop> steps_;
  int64_t num_audited_steps_ = 0;
  EngineStats stats_;
  StatsBoard board_;
  Inbox inbox_;
  std::mutex close_mutex_;  // held while the thread is joined
  std::thread thread_;
};

}  // namespace llmi

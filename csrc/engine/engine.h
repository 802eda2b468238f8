// The engine: a thread that runs the step loop over a queue of requests.
#pragma once

#include <array>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "cache/kv_cache.h"
#include "engine/active_requests.h"
#include "engine/costs.h"
#include "engine/detokenizer.h"
#include "engine/drafting/drafting.h"
#include "engine/inbox.h"
#include "engine/lab.h"
#include "engine/policy.h"
#include "engine/request.h"
#include "engine/running.h"
#include "engine/stats.h"
#include "engine/trace.h"
#include "kernels/dispatch/device.h"
#include "kernels/draws/draw.h"
#include "model/decoder.h"
#include "sampling/law.h"
#include "scheduler/scheduler.h"
#include "speculative/length.h"

namespace llmi {

struct EngineConfig {
  SchedulerConfig scheduler;
  int64_t max_model_len = 0;
  int64_t num_pages = 0;
  int64_t block_size = 16;
  KvType kv_type = KvType::kF16;
  std::shared_ptr<PolicyHook> policy_hook;
  std::shared_ptr<BatchHook> batch_hook;
  bool prefix_caching = true;
  bool audit_each_step = false;  // for tests
  // Called ten times a second by a thread that waits for the engine; what it throws ends the wait. May be empty.
  std::function<void()> check_wait;
};

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

  const Decoder& decoder() const { return *decoder_; }
  const EngineConfig& config() const { return config_; }

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

  // Sequences of the lab: see Lab.
  std::vector<LabResult> LabExtend(const std::vector<LabExtension>& extensions) { return lab_->Extend(extensions); }
  std::shared_ptr<LabSequence> LabFork(const std::shared_ptr<LabSequence>& sequence) { return lab_->Fork(sequence); }
  void LabRollback(const std::shared_ptr<LabSequence>& sequence, int64_t num_tokens) { lab_->Rollback(sequence, num_tokens); }
  int64_t LabSync(const std::shared_ptr<LabSequence>& sequence, const std::vector<int32_t>& token_ids) {
    return lab_->Sync(sequence, token_ids);
  }
  void LabCommit(const std::shared_ptr<LabSequence>& sequence, const std::vector<int32_t>& path) { lab_->Commit(sequence, path); }
  void LabClose(const std::shared_ptr<LabSequence>& sequence) { lab_->Close(sequence); }
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
  // A row that was drawn ahead.
  struct PreparedRow {
    float* law = nullptr;     // [vocab_size]: `copy`, or the row's logits themselves where nobody asks for those afterwards
    std::vector<float> copy;  // empty, or the law beside the logits
    int32_t token = 0;
    std::exception_ptr error;
  };
  void ThreadMain();
  void End();
  bool MayRun(bool stepped) const;
  void Take(Inbox::Mail& mail);
  void RunStep();
  std::unique_ptr<LaunchedStep> LaunchStep();
  // A step ahead of the last one's tokens (ahead.cc): launched after it, and taken as the next, if it is still wanted.
  bool MayRunAhead(const LaunchedStep& step) const;
  bool MayAdmit(const LaunchedStep& step) const;
  void LaunchAhead(const LaunchedStep& step);
  std::unique_ptr<LaunchedStep> TakeAhead();
  ForwardBatch BuildBatch(const std::vector<ScheduledPiece>& pieces, std::vector<LogitsRow>* rows);
  void ProcessRows(LaunchedStep* step);
  void ProcessBatch(std::span<const LogitsRow> rows, const float* logits);
  void PrepareRows(std::span<const LogitsRow> rows, float* logits);
  void ProcessAhead(std::span<const LogitsRow> rows, const std::vector<std::pair<PreparedRow*, size_t>>& ahead);
  void RunProcessors(const Sample& sample, float* logits);

  static bool IsJudged(const LogitsRow& row);
  // Verification of whole drafts (judge.cc): keeps the row, and after the last one emits what the judge decides.
  class JudgedDraft;
  void JudgeRow(Running& running, Sample& sample, int32_t node, const float* raw);
  void ProcessPromptRow(Running& running, int64_t position, const float* raw);
  void StartSiblings(Running& running, const float* raw);
  // drawn: what the device has drawn, or kNotDrawn; raw is nothing then.
  void SampleToken(Running& running, Sample& sample, const float* raw, const RowVerdict& drawn);
  // Rows that are drawn where their logits are (device_rows.cc); the logits of the others, in logits_.
  PendingDraws LaunchDraws(std::span<const LogitsRow> rows, const float* hidden);
  void TakeDraws(std::span<const LogitsRow> rows, const float* hidden, const PendingDraws& draws);
  static bool MayDrawThere(const LogitsRow& row);
  float* HostRow(int64_t row);
  // Of a row of this chunk; its child may be kFindChild.
  RowVerdict DrawnThere(size_t row) const { return row < drawn_there_.size() ? drawn_there_[row] : kNotDrawn; }
  // child: the draft node that holds the token, or -1.
  void AfterToken(Sample& sample, int32_t token, int32_t child, const float* raw);
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
  DecodeTrace trace_;
  std::vector<float> logits_, law_;
  std::unique_ptr<Lab> lab_;
  std::unique_ptr<StepCosts> costs_;
  std::unique_ptr<Drafting> drafting_;
  // Rows that the engine-wide processors have had in this step, by sample: [vocab_size] each, of the matrix.
  std::unordered_map<const Sample*, const float*> batched_rows_;
  std::vector<float> batch_matrix_;
  // Rows of this chunk that were drawn ahead.
  std::unordered_map<const Sample*, PreparedRow> prepared_rows_;
  std::vector<std::vector<float>> spare_laws_;  // of earlier rows, for the next
  std::vector<RowVerdict> drawn_there_;         // by row of this chunk; empty without a device
  std::unique_ptr<LaunchedStep> ahead_;
  double hook_seconds_ = 0;
  int64_t num_audited_steps_ = 0;
  int num_empty_steps_ = 0;  // in a row

  EngineStats stats_;
  StatsBoard board_;
  Inbox inbox_;
  std::mutex close_mutex_;  // held while the thread is joined
  std::thread thread_;
};

}  // namespace llmi

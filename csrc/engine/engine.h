// The engine: a thread that runs the step loop over a queue of requests.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "cache/kv_cache.h"
#include "engine/detokenizer.h"
#include "engine/request.h"
#include "model/decoder.h"
#include "scheduler/scheduler.h"

namespace llmi {

struct EngineConfig {
  SchedulerConfig scheduler;
  int64_t max_model_len = 0;
  int64_t num_pages = 0;
  int64_t block_size = 16;
  KvType kv_type = KvType::kF16;
  bool audit_each_step = false;  // for tests
};

// Counters of the engine, taken under its lock.
struct EngineStats {
  int64_t num_steps = 0;
  int64_t num_prompt_tokens = 0;  // computed in prefill, recomputed ones included
  int64_t num_generated_tokens = 0;
  int64_t num_finished_requests = 0;
  int64_t num_preemptions = 0;
  int64_t num_recomputed_tokens = 0;
  int64_t num_copies_on_write = 0;
  int64_t num_window_blocks_returned = 0;
  int64_t num_running = 0;
  int64_t num_waiting = 0;
  int64_t num_pages = 0;
  int64_t num_free_pages = 0;
  int64_t num_shared_pages = 0;
  double wasted_share = 0;
  double busy_time_s = 0;
  std::string audit;  // empty if clean
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
  void Submit(const std::vector<std::shared_ptr<Request>>& requests, const std::shared_ptr<OutputChannel>& channel);
  // Ends these requests; each still gets its finish event.
  void Abort(const std::vector<uint64_t>& request_ids);
  // One iteration of the loop, for requests with `stepped`; returns false if there was nothing to do.
  bool Step();
  EngineStats Stats();
  bool OnEngineThread() const { return std::this_thread::get_id() == thread_.get_id(); }
  // Ends all requests, joins the thread, frees weights and cache.
  void Close();

 private:
  struct Sample;
  struct Running;
  struct LogitsRow;

  void CheckOpen() const;  // under the lock
  void ThreadMain();
  bool MayRun() const;
  void TakeIncoming();
  void RunStep();
  ForwardBatch BuildBatch(const std::vector<ScheduledPiece>& pieces, std::vector<LogitsRow>* rows);
  void ProcessRows(const std::vector<LogitsRow>& rows, const ForwardResult& result);
  void ProcessPromptRow(Running& running, int64_t position, float* raw);
  void StartSiblings(Running& running, const float* raw);
  void SampleToken(Running& running, Sample& sample, const float* raw);
  void AfterToken(Running& running, Sample& sample, int32_t token, const float* raw);
  void FinishSample(Running& running, Sample& sample, FinishReason reason);
  void FinishRequest(uint64_t id);
  void FailRequest(Running& running, const Error& error);
  void ReleaseStaticRows();
  void EmitStreams();
  void PublishStats();  // under the lock

  std::unique_ptr<Decoder> decoder_;
  KernelContext context_;
  EngineConfig config_;
  std::shared_ptr<const TokenBytes> tokens_;
  std::unique_ptr<KvCache> cache_;
  std::unique_ptr<Scheduler> scheduler_;
  std::unordered_map<uint64_t, std::unique_ptr<Running>> requests_;
  std::vector<std::unique_ptr<Sample>> static_rows_;  // finished, kept until their batch ends
  std::vector<uint64_t> done_;                        // to be finished at the end of the step
  std::vector<float> logits_, law_;
  uint64_t num_submitted_ = 0;
  int num_empty_steps_ = 0;  // in a row

  std::mutex mutex_;  // guards what follows
  std::condition_variable wake_;
  std::condition_variable stepped_;
  std::vector<std::pair<std::shared_ptr<Request>, std::shared_ptr<OutputChannel>>> incoming_;
  std::vector<uint64_t> aborts_;
  int64_t step_credits_ = 0;
  uint64_t steps_done_ = 0;
  bool step_did_work_ = false;
  bool closing_ = false;
  bool busy_ = false;
  std::string failure_;  // why the engine stopped, if it did
  EngineStats stats_;
  int pid_ = 0;
  std::thread thread_;
};

}  // namespace llmi

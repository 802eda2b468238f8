// The requests under way: takes them in, ends them and their samples, and hands them over. Engine thread only.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "cache/kv_cache.h"
#include "engine/detokenizer.h"
#include "engine/inbox.h"
#include "engine/running.h"
#include "scheduler/scheduler.h"

namespace llmi {

// Tokens of the prompt that the model reads: where nothing is drawn, the last one is only scored.
int64_t NumInputs(const Request& request);

class ActiveRequests {
 public:
  // keeps_rows: a finished sample's row stays in the batch until the whole batch has ended (SchedulingPolicy::kStatic).
  ActiveRequests(KvCache& cache, Scheduler& scheduler, const Inbox& inbox, std::shared_ptr<const TokenBytes> tokens, bool keeps_rows);

  // Takes a request in, with an empty cache; returns its first sample, which the caller gives to the scheduler.
  Sample& Add(const std::shared_ptr<Request>& request, const std::shared_ptr<OutputChannel>& channel);
  // Ends the samples that run; nothing if there is no such request.
  void Abort(uint64_t id);
  void Fail(Running& running, const Error& error);
  // Every request that has not finished.
  void FailAll(const Error& error);
  void Finish(Sample& sample, FinishReason reason);
  // Sends the finish event of each request whose samples have all finished. step_ahead: a launched step may still compute their rows.
  void HandOver(bool step_ahead);
  // Frees the cache of rows that the scheduler has let go.
  void ReleaseRows();
  // Frees the cache of all rows of requests that were handed over.
  void ReleaseAllRows();
  // Sends what is new to the callers that read along.
  void EmitStreams();

  // Whether some request runs without Engine::Step.
  bool HasFreeRunning() const;
  const std::unordered_map<uint64_t, std::unique_ptr<Running>>& all() const { return requests_; }
  int64_t num_finished() const { return num_finished_; }

 private:
  void HandOverOne(uint64_t id, bool step_ahead);

  KvCache& cache_;
  Scheduler& scheduler_;
  const Inbox& inbox_;
  const std::shared_ptr<const TokenBytes> tokens_;
  const bool keeps_rows_;
  std::unordered_map<uint64_t, std::unique_ptr<Running>> requests_;
  std::vector<std::unique_ptr<Sample>> ended_rows_;  // of a static batch, or of a step ahead: kept until these end
  std::vector<uint64_t> done_;                       // to be handed over at the end of the step
  uint64_t num_samples_ = 0;                         // ever taken in
  int64_t num_finished_ = 0;                         // requests
};

}  // namespace llmi

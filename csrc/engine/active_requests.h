// The requests under way: adds them, ends them and their samples, and hands finished ones to their callers. Engine thread only.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "cache/kv_cache.h"
#include "engine/detokenizer.h"
#include "engine/emit.h"
#include "engine/lifetime.h"
#include "engine/pulse.h"
#include "engine/running.h"
#include "scheduler/scheduler.h"

namespace llmi {

class ActiveRequests {
 public:
  // keeps_rows: a finished sample's row stays in the batch until the whole batch has ended (SchedulingPolicy::kStatic).
  ActiveRequests(KvCache& cache, Scheduler& scheduler, const Lifetime& life, Pulse& pulse, std::shared_ptr<const TokenBytes> tokens,
                 bool keeps_rows);

  // Adds a request with an empty cache. Returns its first sample, which the caller gives to the scheduler.
  Sample& Add(const std::shared_ptr<Request>& request, const std::shared_ptr<OutputChannel>& channel);
  // Ends the samples of this request that still run. Does nothing if there is no such request.
  void Abort(uint64_t id);
  void Fail(Running& running, const Error& error);
  // Fails every request that has not finished.
  void FailAll(const Error& error);
  void Finish(Sample& sample, FinishReason reason);
  // Finishes all samples of a request. A beam search then has its hypotheses as outputs.
  void FinishAll(Running& running, FinishReason reason);
  // Sends the events of a step: what EmitStreams has collected, then the finish event of each request whose samples have all finished.
  // step_ahead: a launched step may still compute their rows.
  void HandOver(bool step_ahead);
  // Frees the cache of finished rows that have left the scheduler.
  void ReleaseRows();
  // Frees the cache of all rows of requests that were handed over.
  void ReleaseAllRows();
  // Collects new tokens and text for the callers that stream; HandOver sends them.
  void EmitStreams();
  // Call it for each piece that a step computes of a request.
  void NoteScheduled(Request& request);

  // Whether some request runs without calls of Engine::Step.
  bool HasFreeRunning() const;
  const std::unordered_map<uint64_t, std::unique_ptr<Running>>& all() const { return requests_; }
  int64_t num_finished() const { return num_finished_; }

 private:
  void HandOverOne(uint64_t id, bool step_ahead);

  KvCache& cache_;
  Scheduler& scheduler_;
  const Lifetime& life_;
  Pulse& pulse_;
  const std::shared_ptr<const TokenBytes> tokens_;
  const bool keeps_rows_;
  std::unordered_map<uint64_t, std::unique_ptr<Running>> requests_;
  std::vector<std::unique_ptr<Sample>> ended_rows_;  // rows that a static batch or a step ahead still computes
  Outbox outbox_;
  std::vector<uint64_t> done_;  // requests to hand over at the end of the step
  uint64_t num_samples_ = 0;    // that were ever added
  int64_t num_finished_ = 0;    // requests
};

}  // namespace llmi

// Gathers the engine's counters from its parts and shows them to other threads.
#pragma once

#include <cstdint>

#include "cache/kv_cache.h"
#include "engine/active_requests.h"
#include "engine/costs.h"
#include "engine/saved_prefixes.h"
#include "engine/stats.h"
#include "engine/step.h"
#include "kernels/dispatch/device.h"
#include "model/work.h"
#include "scheduler/scheduler.h"

namespace llmi {

class StatsCollector {
 public:
  // saved: null: blocks do not outlive the engine.
  // audits_each_step: checks the cache after every step; the first fault that is found stays in EngineStats::audit.
  // device: null on the CPU.
  StatsCollector(const Device* device, const KvCache& cache, const Scheduler& scheduler, const ActiveRequests& requests,
                 const StepCosts& costs, StepLoop& steps, SavedPrefixes* saved, bool audits_each_step);

  // --- Any thread. The counters as they were published last.
  EngineStats Latest() const { return board_.Latest(); }

  // --- The engine thread alone.
  // Adds a step: its time, and what the decoder computed in it.
  void AddStep(double seconds, const Work& work) {
    stats_.busy_time_s += seconds;
    stats_.num_operations += work.operations;
    stats_.num_read_bytes += work.read_bytes;
  }
  void Publish();
  // The same with the numbers that need a walk over all pages: shared pages, unused slots, and an audit.
  void PublishWithPages();
  // At the engine's end: updates the counters of steps and requests. The other numbers stay as they were.
  void PublishEnd();

 private:
  const Device* device_;
  const KvCache& cache_;
  const Scheduler& scheduler_;
  const ActiveRequests& requests_;
  const StepCosts& costs_;
  StepLoop& steps_;
  SavedPrefixes* const saved_;
  const bool audits_each_step_;
  int64_t num_audited_steps_ = 0;
  EngineStats stats_;
  StatsBoard board_;
};

}  // namespace llmi

// Counters of the engine, and where other threads read them.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>

#include "kernels/dispatch/device.h"

namespace llmi {

struct EngineStats {
  int64_t num_steps = 0;
  int64_t num_prompt_tokens = 0;  // computed in prefill, recomputed ones included
  int64_t num_generated_tokens = 0;
  int64_t num_finished_requests = 0;
  int64_t num_preemptions = 0;
  int64_t num_recomputed_tokens = 0;
  int64_t num_restored_tokens = 0;  // of preempted sequences whose blocks came back from the host
  int64_t num_copies_left_out = 0;  // of preempted sequences, where computing again looked faster
  int64_t num_device_draws = 0;     // rows drawn where their logits lie; those of other rows came to the host
  int64_t num_steps_ahead = 0;      // launched before the tokens of the step before were known
  DeviceCounts device;
  int64_t num_copies_on_write = 0;
  int64_t num_window_blocks_returned = 0;
  int64_t num_running = 0;
  int64_t num_waiting = 0;
  int64_t num_pages = 0;
  int64_t num_free_pages = 0;     // and those that only the prefix cache holds
  int64_t num_cached_pages = 0;   // held by the prefix cache alone: free as soon as they are wanted
  int64_t num_prefix_blocks = 0;  // in the prefix tree
  int64_t num_prefix_queried_tokens = 0;
  int64_t num_prefix_hit_tokens = 0;
  int64_t num_prefix_evictions = 0;
  int64_t num_shared_pages = 0;
  double wasted_share = 0;
  double busy_time_s = 0;
  double hook_time_s = 0;  // of it, in user code: processors, samplers, criteria
  std::string audit;       // empty if clean
};

// The latest counters that the engine thread has published; any thread reads them.
class StatsBoard {
 public:
  void Publish(const EngineStats& stats) {
    const std::lock_guard lock(mutex_);
    latest_ = stats;
  }
  EngineStats Latest() const {
    const std::lock_guard lock(mutex_);
    return latest_;
  }

 private:
  mutable std::mutex mutex_;
  EngineStats latest_;
};

}  // namespace llmi

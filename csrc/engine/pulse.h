// The state of the engine thread that any thread may read without waiting for it: whether it moves, and how many requests it has not begun.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "engine/clock.h"

namespace llmi {

class Pulse {
 public:
  // --- Any thread.
  // Requests were handed in. The caller holds the lock of the inbox.
  void Submitted(int64_t num_requests) {
    if (num_queued_.fetch_add(num_requests) == 0 && idle_) Beat();
  }
  // Requests that no step has computed a token of.
  int64_t num_queued() const { return num_queued_; }
  // Seconds since the thread last finished a step or checked its work; 0 while it has nothing to do.
  double StalledSeconds() const {
    if (idle_ && num_queued_ == 0) return 0;
    return std::max(0.0, NowSeconds() - beat_s_);
  }

  // --- The engine thread alone.
  // A request was scheduled for the first time, or ended before it was.
  void Begun() { --num_queued_; }
  void Beat() { beat_s_ = NowSeconds(); }
  void set_idle(bool idle) {
    Beat();
    idle_ = idle;
  }

 private:
  std::atomic<double> beat_s_{NowSeconds()};
  std::atomic<bool> idle_{true};
  std::atomic<int64_t> num_queued_{0};
};

}  // namespace llmi

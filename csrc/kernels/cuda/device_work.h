// Counts of what the devices of this process that are no GPU were given to do, for tests and benchmarks.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>

namespace llmi::cuda {

struct DeviceWork {
  int64_t launches = 0;     // outside recordings
  int64_t replays = 0;      // recordings that were played
  int64_t graph_nodes = 0;  // their launches and copies
  int64_t uploads = 0;
  int64_t upload_bytes = 0;
  int64_t copies = 0;                      // within the device, outside recordings
  int64_t waits = 0;                       // downloads, and waits for the tokens of a draw
  int64_t streamed_bytes = 0;              // of weights, as blocks name them (HostBlock::Streams)
  std::map<std::string, int64_t> kernels;  // launches of each, those of recordings among them; null devices leave it out
};

// The emulated launch of this number from now on fails, as one whose kernel stops on a GPU; 0: none does.
inline std::atomic<int64_t> failing_launch = 0;

class WorkCounter {
 public:
  static WorkCounter& Shared() {
    static WorkCounter counter;
    return counter;
  }
  template <typename Change>
  void Count(const Change& change) {
    const std::lock_guard lock(mutex_);
    change(work_);
  }
  DeviceWork work() const {
    const std::lock_guard lock(mutex_);
    return work_;
  }

 private:
  mutable std::mutex mutex_;
  DeviceWork work_;
};

}  // namespace llmi::cuda

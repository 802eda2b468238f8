// A scheduling policy written by the user.
#pragma once

#include <cstdint>
#include <vector>

namespace llmi {

// The facts about a request that a scheduling policy may use.
struct PolicyRequest {
  uint64_t id = 0;
  int64_t priority = 0;
  double arrival_time_s = 0;
  int64_t prompt_len = 0;
  int64_t num_tokens = 0;      // prompt and output so far
  int64_t max_new_tokens = 0;  // that may still come
  int64_t num_preemptions = 0;
};

// A policy written by the user: waiting requests run in ascending order of their keys. Throws Error(kHook).
class PolicyHook {
 public:
  virtual ~PolicyHook() = default;
  virtual std::vector<double> Key(const PolicyRequest& request, double now_s) = 0;
};

}  // namespace llmi

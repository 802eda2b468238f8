// The queue of requests, aborts and work that other threads hand to the engine thread without waiting for it, and the calls of
// Engine::Step, each of which waits for one step.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "engine/lifetime.h"
#include "engine/pulse.h"
#include "engine/request.h"

namespace llmi {

class Inbox {
 public:
  // Everything that has come since the last Take.
  struct Mail {
    std::vector<std::pair<std::shared_ptr<Request>, std::shared_ptr<OutputChannel>>> requests;
    std::vector<uint64_t> aborts;
    std::vector<std::function<void()>> posts;
    bool closing = false;  // the engine is closing: no more requests and posts will come
    bool empty() const { return requests.empty() && aborts.empty() && posts.empty(); }
  };

  // check_wait: see CommandQueue.
  Inbox(Lifetime& life, std::function<void()> check_wait);

  // --- Any thread.
  Pulse& pulse() { return pulse_; }
  // Queues requests, all at once, so that they meet in the same step; their events go to `channel`. Throws Error(kClosed).
  void Submit(const std::vector<std::shared_ptr<Request>>& requests, const std::shared_ptr<OutputChannel>& channel);
  void Abort(const std::vector<uint64_t>& request_ids);
  // Runs `work` soon on the engine thread; nobody waits for it. Dropped if the engine ends first, and in the child of a fork.
  void Post(std::function<void()> work);
  // Engine::Step.
  bool Step();

  // --- The engine thread alone.
  // Waits until there is mail or a step to make, until has_work() holds, or until the engine is closing. Takes the mail.
  // has_work: called under the lock of Lifetime. shortly: at most for Lifetime::kCheckInterval.
  Mail Wait(const std::function<bool()>& has_work, bool shortly = false);
  // Takes the mail without waiting.
  Mail Take();
  // Whether Step was called; the step counts as begun.
  bool TakeStep();
  void FinishStep(bool did_work);

 private:
  Lifetime& life_;
  Pulse pulse_;
  const std::function<void()> check_wait_;
  // Guarded by the lock of Lifetime.
  Mail mail_;
  int64_t step_credits_ = 0;
  uint64_t steps_done_ = 0;
  bool step_did_work_ = false;
};

}  // namespace llmi

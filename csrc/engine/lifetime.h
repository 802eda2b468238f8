// The life of the engine's thread: it runs, it is closing, or it has ended. The engine thread and other threads wait for each other here.
// One lock guards this state and the queues (Inbox, CommandQueue). So the engine thread sees everything that was queued before the engine
// closed, and nothing is queued afterwards.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "core/errors.h"

namespace llmi {

class Lifetime {
 public:
  using Lock = std::unique_lock<std::mutex>;

  Lifetime();

  // --- Any thread.
  // Whether this process is a child of the one that made the engine: the thread does not exist here, and the lock may be held without end.
  bool IsForked() const;
  bool OnEngineThread() const;
  bool IsClosing() const;
  // Throws Error(kClosed) after BeginClose, and in the child of a fork.
  void CheckOpen() const;
  // Asks the engine thread to end all requests and then itself.
  void BeginClose();
  // Waits at most timeout_s for the thread's end; returns whether it has come.
  bool WaitEnded(double timeout_s);

  // --- The queues, on any thread, but not in the child of a fork.
  Lock Acquire() const { return Lock(mutex_); }
  // The same, but throws like CheckOpen.
  Lock AcquireOpen() const;
  // Whether BeginClose or Fail was called. The caller holds the lock.
  bool is_closing() const { return closing_; }
  // Wakes the threads that wait. Call it after a change that they wait for.
  void Notify() { changed_.notify_all(); }
  // Waits until done() holds or the engine is closing.
  template <typename Done>
  void Wait(Lock& lock, const Done& done) {
    changed_.wait(lock, [&] { return closing_ || done(); });
  }
  // The same for at most kCheckInterval; returns whether one of them holds.
  template <typename Done>
  bool WaitShortly(Lock& lock, const Done& done) {
    return changed_.wait_for(lock, kCheckInterval, [&] { return closing_ || done(); });
  }
  // How often a thread that waits for the engine calls check_wait.
  static constexpr std::chrono::milliseconds kCheckInterval{100};
  // The error of calls that come after BeginClose or Fail. The caller holds the lock.
  Error ClosedError() const;

  // --- The engine thread alone.
  void BindThread();
  // Closes the engine: requests under way get this error.
  void Fail(const Error& error);
  // The error of requests that end with the engine.
  Error ErrorOfRequests() const;
  void End();

 private:
  const int pid_;
  std::atomic<std::thread::id> thread_id_{};
  mutable std::mutex mutex_;  // guards what follows, and the queues
  std::condition_variable changed_;
  bool closing_ = false;
  bool ended_ = false;            // the thread has left its loop
  std::optional<Error> failure_;  // why the engine stopped, if it did
};

// The error of a request that was under way when the engine was closed.
Error ClosedUnderWay();

}  // namespace llmi

// Work that other threads give to the engine thread, between two steps, and wait for.
#pragma once

#include <atomic>
#include <functional>
#include <future>
#include <vector>

#include "engine/lifetime.h"

namespace llmi {

class CommandQueue {
 public:
  // check_wait: called ten times a second by a thread that waits; its exception ends the wait. May be empty.
  CommandQueue(Lifetime& life, std::function<void()> check_wait);

  // --- Any thread.
  // Runs `work` on the engine thread, between two steps, and returns when it is done; its exception comes through. Throws Error(kBusy) on
  // the engine thread itself, Error(kClosed) if the engine is closed. If check_wait throws, work that has not begun is dropped, and work
  // under way ends at its next CheckCaller.
  void Execute(const std::function<void()>& work);
  // The same, but runs `work` at once on the engine thread, and not at all if the engine is closed.
  void TryExecute(const std::function<void()>& work);

  // --- The engine thread alone.
  // Whether some command waits. The caller holds the lock of Lifetime.
  bool has_waiting() const { return !waiting_.empty(); }
  // Runs the commands that wait, after prepare(). Returns whether there were any.
  bool Run(const std::function<void()>& prepare);
  // Throws Error(kInterrupted) if the caller of the command under way waits no more. Commands call it between two forwards.
  void CheckCaller() const;
  // The commands that wait fail with Error(kClosed).
  void Refuse();

 private:
  struct Command {
    const std::function<void()>* work;
    std::promise<void>* done;
    const std::atomic<bool>* dropped;  // by its caller
  };

  Lifetime& life_;
  const std::function<void()> check_wait_;
  const std::atomic<bool>* dropped_ = nullptr;  // of the command under way; the engine thread's
  std::vector<Command> waiting_;                // guarded by the lock of Lifetime
};

}  // namespace llmi

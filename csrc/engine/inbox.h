// Between the engine thread and all others: what they hand in, how they wait for it, how a wait ends early, and how the engine ends.
// The engine thread calls the methods of the second part, everybody else those of the first.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/errors.h"
#include "engine/request.h"

namespace llmi {

class Inbox {
 public:
  // What the engine thread takes out at once.
  struct Mail {
    std::vector<std::pair<std::shared_ptr<Request>, std::shared_ptr<OutputChannel>>> requests;
    std::vector<uint64_t> aborts;
    std::vector<std::function<void()>> posts;
    bool closing = false;
  };

  // check_wait: called ten times a second by a thread that waits; its exception ends the wait. May be empty.
  explicit Inbox(std::function<void()> check_wait);

  // Whether this process is a child of the one that made the engine: its thread is not here, its locks may be held for ever.
  bool IsForked() const;
  bool OnEngineThread() const;
  bool IsClosing() const;
  // Throws Error(kClosed) after BeginClose, and in the child of a fork.
  void CheckOpen() const;
  // Queues requests, all at once, so that they meet in the same step; their events go to `channel`. Throws like CheckOpen.
  void Submit(const std::vector<std::shared_ptr<Request>>& requests, const std::shared_ptr<OutputChannel>& channel);
  void Abort(const std::vector<uint64_t>& request_ids);
  // Engine::Step.
  bool Step();
  // Engine::Execute.
  void Execute(const std::function<void()>& work);
  // Runs `work` like Execute, or at once on the engine thread; nothing if the engine is closed.
  void TryExecute(const std::function<void()>& work);
  // Runs `work` soon on the engine thread; nobody waits for it. Dropped if the engine ends first, and in the child of a fork.
  void Post(std::function<void()> work);
  // Asks the engine thread to end all requests and then itself.
  void BeginClose();
  // Waits at most timeout_s for the thread's end; returns whether it has come.
  bool WaitEnded(double timeout_s);

  // The rest is called on the engine thread alone.
  void BindThread();
  // Waits until there is mail, a command or a step to make, or until may_run() holds, and takes the mail.
  Mail Wait(const std::function<bool()>& may_run);
  // Runs the commands that wait, after prepare(). Returns whether there were any.
  bool RunCommands(const std::function<void()>& prepare);
  // Throws Error(kInterrupted) if the caller of the command under way waits no more. Called between two forwards.
  void CheckCommand() const;
  // Whether Step was called; the step counts as begun.
  bool TakeStep();
  void FinishStep(bool did_work);
  // Closes the inbox for this reason, and takes what was handed in before.
  Mail Fail(const std::string& reason);
  // What a request that ends with the engine is told.
  Error ClosingError() const;
  // The commands that wait fail with Error(kClosed).
  void RefuseCommands();
  void End();

  static Error ClosedUnderWay();  // of a request

 private:
  struct Command {
    const std::function<void()>* work;
    std::promise<void>* done;
    const std::atomic<bool>* dropped;  // by its caller
  };
  Error ClosedError() const;    // under the lock
  void CheckNotClosed() const;  // likewise
  Mail TakeMail();              // likewise

  const std::function<void()> check_wait_;
  const int pid_;
  std::atomic<std::thread::id> thread_id_{};
  const std::atomic<bool>* command_dropped_ = nullptr;  // of the command under way; the engine thread's

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable wake_;
  std::condition_variable stepped_;
  Mail mail_;
  std::vector<Command> commands_;
  int64_t step_credits_ = 0;
  uint64_t steps_done_ = 0;
  bool step_did_work_ = false;
  bool ended_ = false;   // the thread has left its loop
  std::string failure_;  // why the engine stopped, if it did
};

}  // namespace llmi

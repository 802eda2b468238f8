#include "engine/command_queue.h"

#include <utility>

namespace llmi {

CommandQueue::CommandQueue(Lifetime& life, std::function<void()> check_wait) : life_(life), check_wait_(std::move(check_wait)) {}

void CommandQueue::Execute(const std::function<void()>& work) {
  if (life_.OnEngineThread()) {
    throw Error(ErrorKind::kBusy, "the engine was called from inside one of its own hooks or drafters; use another LLM there");
  }
  std::promise<void> done;
  std::atomic<bool> dropped{false};
  {
    const Lifetime::Lock lock = life_.AcquireOpen();
    waiting_.push_back({&work, &done, &dropped});
  }
  life_.Notify();
  std::future<void> ended = done.get_future();
  while (ended.wait_for(Lifetime::kCheckInterval) != std::future_status::ready) {
    if (!check_wait_) continue;
    try {
      check_wait_();
    } catch (...) {
      dropped = true;
      Lifetime::Lock lock = life_.Acquire();
      const bool has_begun = std::erase_if(waiting_, [&](const Command& command) { return command.done == &done; }) == 0;
      lock.unlock();
      if (has_begun) ended.wait();  // it works on the caller's memory
      throw;
    }
  }
  ended.get();
}

void CommandQueue::TryExecute(const std::function<void()>& work) {
  if (life_.OnEngineThread()) {
    work();
    return;
  }
  if (life_.IsForked()) life_.CheckOpen();
  try {
    Execute(work);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kClosed) throw;
  }
}

bool CommandQueue::Run(const std::function<void()>& prepare) {
  std::vector<Command> commands;
  {
    const Lifetime::Lock lock = life_.Acquire();
    commands.swap(waiting_);
  }
  if (commands.empty()) return false;
  prepare();
  for (const Command& command : commands) {
    dropped_ = command.dropped;
    try {
      CheckCaller();
      (*command.work)();
      command.done->set_value();
    } catch (...) {
      command.done->set_exception(std::current_exception());
    }
    dropped_ = nullptr;
  }
  return true;
}

void CommandQueue::CheckCaller() const {
  if (dropped_ != nullptr && *dropped_) throw Error(ErrorKind::kInterrupted, "nobody waits for this call any more");
}

void CommandQueue::Refuse() {
  Lifetime::Lock lock = life_.Acquire();
  const std::vector<Command> commands = std::exchange(waiting_, {});
  const Error error = life_.ClosedError();
  lock.unlock();
  for (const Command& command : commands) command.done->set_exception(std::make_exception_ptr(error));
}

}  // namespace llmi

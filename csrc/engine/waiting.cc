// Other threads at the engine: calls that wait for its thread, how such a wait ends early, and how the engine ends.
#include <unistd.h>

#include <chrono>
#include <utility>

#include "core/errors.h"
#include "engine/running.h"
#include "kernels/dispatch/device.h"

namespace llmi {
namespace {

constexpr std::chrono::milliseconds kCheckInterval{100};

}  // namespace

bool Engine::IsForked() const { return getpid() != pid_; }

Error Engine::ClosedError() const { return Error(ErrorKind::kClosed, failure_.empty() ? "the engine is closed" : failure_); }

Error Engine::ClosedUnderWay() { return Error(ErrorKind::kClosed, "the engine was closed while this request was under way"); }

bool Engine::IsClosing() const {
  const std::lock_guard lock(mutex_);
  return closing_;
}

void Engine::CheckNotClosed() const {
  if (closing_) throw ClosedError();
}

void Engine::CheckOpen() const {
  if (IsForked()) throw Error(ErrorKind::kClosed, "the engine belongs to the parent process: make a new LLM after fork");
  const std::lock_guard lock(mutex_);
  CheckNotClosed();
}

bool Engine::Step() {
  CheckOpen();
  std::unique_lock lock(mutex_);
  CheckNotClosed();
  const uint64_t target = steps_done_ + 1;
  ++step_credits_;
  wake_.notify_all();
  while (!stepped_.wait_for(lock, kCheckInterval, [&] { return steps_done_ >= target || closing_; })) {
    if (!config_.check_wait) continue;
    lock.unlock();
    try {
      config_.check_wait();
    } catch (...) {
      lock.lock();
      if (step_credits_ > 0) --step_credits_;  // a step that has begun has taken its credit
      throw;
    }
    lock.lock();
  }
  return step_did_work_;
}

void Engine::Execute(const std::function<void()>& work) {
  if (OnEngineThread()) {
    throw Error(ErrorKind::kBusy, "the engine was called from inside one of its own hooks or drafters; use another LLM there");
  }
  CheckOpen();
  std::promise<void> done;
  std::atomic<bool> dropped{false};
  {
    const std::lock_guard lock(mutex_);
    CheckNotClosed();
    commands_.push_back({&work, &done, &dropped});
  }
  wake_.notify_all();
  std::future<void> ended = done.get_future();
  while (ended.wait_for(kCheckInterval) != std::future_status::ready) {
    if (!config_.check_wait) continue;
    try {
      config_.check_wait();
    } catch (...) {
      dropped = true;
      std::unique_lock lock(mutex_);
      const bool has_begun = std::erase_if(commands_, [&](const Command& command) { return command.done == &done; }) == 0;
      lock.unlock();
      if (has_begun) ended.wait();  // it works on the caller's memory
      throw;
    }
  }
  ended.get();
}

void Engine::TryExecute(const std::function<void()>& work) {
  if (OnEngineThread()) {
    work();
    return;
  }
  if (IsForked()) CheckOpen();
  try {
    Execute(work);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kClosed) throw;
  }
}

void Engine::RunCommands(std::vector<Command> commands) {
  ahead_.reset();  // its sequences and workspaces may be others when they are done
  for (const Command& command : commands) {
    command_dropped_ = command.dropped;
    try {
      CheckCommand();
      (*command.work)();
      command.done->set_value();
    } catch (...) {
      command.done->set_exception(std::current_exception());
    }
    command_dropped_ = nullptr;
  }
}

void Engine::CheckCommand() const {
  if (command_dropped_ != nullptr && *command_dropped_) throw Error(ErrorKind::kInterrupted, "nobody waits for this call any more");
}

void Engine::BeginClose() {
  if (IsForked()) return;
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  wake_.notify_all();
  stepped_.notify_all();
}

bool Engine::WaitEnded(double timeout_s) {
  if (IsForked()) return true;
  std::unique_lock lock(mutex_);
  return stepped_.wait_for(lock, std::chrono::duration<double>(timeout_s), [&] { return ended_; });
}

void Engine::Close() {
  BeginClose();
  if (IsForked() || OnEngineThread()) return;
  const std::lock_guard lock(close_mutex_);
  if (thread_.joinable()) thread_.join();
  scheduler_.reset();
  cache_.reset();
  decoder_.reset();
}

}  // namespace llmi

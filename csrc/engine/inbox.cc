#include "engine/inbox.h"

#include <unistd.h>

#include <chrono>
#include <utility>

#include "engine/clock.h"

namespace llmi {
namespace {

constexpr std::chrono::milliseconds kCheckInterval{100};

}  // namespace

Inbox::Inbox(std::function<void()> check_wait) : check_wait_(std::move(check_wait)), pid_(getpid()) {}

bool Inbox::IsForked() const { return getpid() != pid_; }

bool Inbox::OnEngineThread() const { return std::this_thread::get_id() == thread_id_; }

Error Inbox::ClosedError() const { return Error(ErrorKind::kClosed, failure_.empty() ? "the engine is closed" : failure_); }

Error Inbox::ClosedUnderWay() { return Error(ErrorKind::kClosed, "the engine was closed while this request was under way"); }

Error Inbox::ClosingError() const {
  const std::lock_guard lock(mutex_);
  return failure_.empty() ? ClosedUnderWay() : Error(ErrorKind::kInternal, failure_);
}

bool Inbox::IsClosing() const {
  const std::lock_guard lock(mutex_);
  return mail_.closing;
}

void Inbox::CheckNotClosed() const {
  if (mail_.closing) throw ClosedError();
}

void Inbox::CheckOpen() const {
  if (IsForked()) throw Error(ErrorKind::kClosed, "the engine belongs to the parent process: make a new LLM after fork");
  const std::lock_guard lock(mutex_);
  CheckNotClosed();
}

void Inbox::Submit(const std::vector<std::shared_ptr<Request>>& requests, const std::shared_ptr<OutputChannel>& channel) {
  CheckOpen();
  {
    const std::lock_guard lock(mutex_);
    CheckNotClosed();
    for (const std::shared_ptr<Request>& request : requests) {
      request->arrival_time_s = NowSeconds();
      mail_.requests.emplace_back(request, channel);
    }
  }
  wake_.notify_all();
}

void Inbox::Abort(const std::vector<uint64_t>& request_ids) {
  if (IsForked()) return;
  {
    const std::lock_guard lock(mutex_);
    mail_.aborts.insert(mail_.aborts.end(), request_ids.begin(), request_ids.end());
  }
  wake_.notify_all();
}

bool Inbox::Step() {
  CheckOpen();
  std::unique_lock lock(mutex_);
  CheckNotClosed();
  const uint64_t target = steps_done_ + 1;
  ++step_credits_;
  wake_.notify_all();
  while (!stepped_.wait_for(lock, kCheckInterval, [&] { return steps_done_ >= target || mail_.closing; })) {
    if (!check_wait_) continue;
    lock.unlock();
    try {
      check_wait_();
    } catch (...) {
      lock.lock();
      if (step_credits_ > 0) --step_credits_;  // a step that has begun has taken its credit
      throw;
    }
    lock.lock();
  }
  return step_did_work_;
}

void Inbox::Execute(const std::function<void()>& work) {
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
    if (!check_wait_) continue;
    try {
      check_wait_();
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

void Inbox::TryExecute(const std::function<void()>& work) {
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

void Inbox::Post(std::function<void()> work) {
  if (IsForked()) return;
  {
    const std::lock_guard lock(mutex_);
    if (mail_.closing) return;
    mail_.posts.push_back(std::move(work));
  }
  wake_.notify_all();
}

void Inbox::BeginClose() {
  if (IsForked()) return;
  {
    const std::lock_guard lock(mutex_);
    mail_.closing = true;
  }
  wake_.notify_all();
  stepped_.notify_all();
}

bool Inbox::WaitEnded(double timeout_s) {
  if (IsForked()) return true;
  std::unique_lock lock(mutex_);
  return stepped_.wait_for(lock, std::chrono::duration<double>(timeout_s), [&] { return ended_; });
}

void Inbox::BindThread() { thread_id_ = std::this_thread::get_id(); }

// The inbox stays closed once it is.
Inbox::Mail Inbox::TakeMail() {
  Mail mail = std::move(mail_);
  mail_ = {};
  mail_.closing = mail.closing;
  return mail;
}

Inbox::Mail Inbox::Wait(const std::function<bool()>& may_run) {
  std::unique_lock lock(mutex_);
  wake_.wait(lock, [&] {
    return mail_.closing || !mail_.requests.empty() || !mail_.aborts.empty() || !mail_.posts.empty() || !commands_.empty() ||
           step_credits_ > 0 || may_run();
  });
  return TakeMail();
}

bool Inbox::RunCommands(const std::function<void()>& prepare) {
  std::vector<Command> commands;
  {
    const std::lock_guard lock(mutex_);
    commands.swap(commands_);
  }
  if (commands.empty()) return false;
  prepare();
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
  return true;
}

void Inbox::CheckCommand() const {
  if (command_dropped_ != nullptr && *command_dropped_) throw Error(ErrorKind::kInterrupted, "nobody waits for this call any more");
}

bool Inbox::TakeStep() {
  const std::lock_guard lock(mutex_);
  if (step_credits_ == 0) return false;
  --step_credits_;
  return true;
}

void Inbox::FinishStep(bool did_work) {
  const std::lock_guard lock(mutex_);
  ++steps_done_;
  step_did_work_ = did_work;
  stepped_.notify_all();
}

Inbox::Mail Inbox::Fail(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  mail_.closing = true;
  failure_ = reason;
  return TakeMail();
}

void Inbox::RefuseCommands() {
  std::unique_lock lock(mutex_);
  const std::vector<Command> commands = std::exchange(commands_, {});
  const Error error = ClosedError();
  lock.unlock();
  for (const Command& command : commands) command.done->set_exception(std::make_exception_ptr(error));
}

void Inbox::End() {
  thread_id_ = std::thread::id();
  const std::lock_guard lock(mutex_);
  ended_ = true;
  stepped_.notify_all();
}

}  // namespace llmi

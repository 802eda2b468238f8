#include "engine/lifetime.h"

#include <unistd.h>

#include <chrono>

namespace llmi {

Lifetime::Lifetime() : pid_(getpid()) {}

bool Lifetime::IsForked() const { return getpid() != pid_; }

bool Lifetime::OnEngineThread() const { return std::this_thread::get_id() == thread_id_; }

bool Lifetime::IsClosing() const {
  const Lock lock = Acquire();
  return closing_;
}

void Lifetime::CheckOpen() const { AcquireOpen(); }

Lifetime::Lock Lifetime::AcquireOpen() const {
  if (IsForked()) throw Error(ErrorKind::kClosed, "the engine belongs to the parent process: make a new LLM after fork");
  Lock lock = Acquire();
  if (closing_) throw ClosedError();
  return lock;
}

void Lifetime::BeginClose() {
  if (IsForked()) return;
  {
    const Lock lock = Acquire();
    closing_ = true;
  }
  Notify();
}

bool Lifetime::WaitEnded(double timeout_s) {
  if (IsForked()) return true;
  Lock lock = Acquire();
  return changed_.wait_for(lock, std::chrono::duration<double>(timeout_s), [&] { return ended_; });
}

Error Lifetime::ClosedError() const { return Error(ErrorKind::kClosed, failure_ ? failure_->what() : "the engine is closed"); }

Error ClosedUnderWay() { return Error(ErrorKind::kClosed, "the engine was closed while this request was under way"); }

Error Lifetime::ErrorOfRequests() const {
  const Lock lock = Acquire();
  return failure_ ? *failure_ : ClosedUnderWay();
}

void Lifetime::BindThread() { thread_id_ = std::this_thread::get_id(); }

void Lifetime::Fail(const Error& error) {
  const Lock lock = Acquire();
  closing_ = true;
  failure_ = error;
}

void Lifetime::End() {
  thread_id_ = std::thread::id();
  const Lock lock = Acquire();
  ended_ = true;
  Notify();
}

}  // namespace llmi

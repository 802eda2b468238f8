#include "engine/inbox.h"

#include <utility>

#include "engine/clock.h"

namespace llmi {

Inbox::Inbox(Lifetime& life, std::function<void()> check_wait) : life_(life), check_wait_(std::move(check_wait)) {}

void Inbox::Submit(const std::vector<std::shared_ptr<Request>>& requests, const std::shared_ptr<OutputChannel>& channel) {
  {
    const Lifetime::Lock lock = life_.AcquireOpen();
    for (const std::shared_ptr<Request>& request : requests) {
      request->arrival_time_s = NowSeconds();
      mail_.requests.emplace_back(request, channel);
    }
    pulse_.Submitted(static_cast<int64_t>(requests.size()));
  }
  life_.Notify();
}

void Inbox::Abort(const std::vector<uint64_t>& request_ids) {
  if (life_.IsForked()) return;
  {
    const Lifetime::Lock lock = life_.Acquire();
    mail_.aborts.insert(mail_.aborts.end(), request_ids.begin(), request_ids.end());
  }
  life_.Notify();
}

void Inbox::Post(std::function<void()> work) {
  if (life_.IsForked()) return;
  {
    const Lifetime::Lock lock = life_.Acquire();
    if (life_.is_closing()) return;
    mail_.posts.push_back(std::move(work));
  }
  life_.Notify();
}

bool Inbox::Step() {
  Lifetime::Lock lock = life_.AcquireOpen();
  const uint64_t target = steps_done_ + 1;
  ++step_credits_;
  life_.Notify();
  while (!life_.WaitShortly(lock, [&] { return steps_done_ >= target; })) {
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

Inbox::Mail Inbox::Wait(const std::function<bool()>& has_work, bool shortly) {
  {
    Lifetime::Lock lock = life_.Acquire();
    const auto ready = [&] { return !mail_.empty() || step_credits_ > 0 || has_work(); };
    if (!ready()) {
      pulse_.set_idle(true);
      if (shortly) {
        life_.WaitShortly(lock, ready);
      } else {
        life_.Wait(lock, ready);
      }
    }
    pulse_.set_idle(false);
  }
  return Take();
}

Inbox::Mail Inbox::Take() {
  const Lifetime::Lock lock = life_.Acquire();
  Mail mail = std::exchange(mail_, {});
  mail.closing = life_.is_closing();
  return mail;
}

bool Inbox::TakeStep() {
  const Lifetime::Lock lock = life_.Acquire();
  if (step_credits_ == 0) return false;
  --step_credits_;
  return true;
}

void Inbox::FinishStep(bool did_work) {
  const Lifetime::Lock lock = life_.Acquire();
  ++steps_done_;
  step_did_work_ = did_work;
  life_.Notify();
}

}  // namespace llmi

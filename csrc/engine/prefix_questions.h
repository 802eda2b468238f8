// Questions to other engines for the blocks of a prompt. The engine thread asks and takes the answers; a thread outside of the core carries
// both. An answer says that the blocks lie in the folder now, or why they do not. Thread-safe.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace llmi {

enum class PrefixAnswer : uint8_t {
  kThere,    // the blocks were written
  kFailed,   // the other engine has gone, or answered with an error
  kForeign,  // it has another model, arithmetic or version, or is this one
  kLate,     // its time had passed
  kUnasked,  // there was nobody to ask
};

struct PrefixQuestion {
  int64_t number = 0;
  std::vector<int32_t> tokens;  // of whole blocks
  std::string salt;             // the request's; empty: none
  double seconds = 0;           // how long the request waits
};

class PrefixQuestions {
 public:
  // wake: makes the engine thread take the answers soon; called on any thread.
  explicit PrefixQuestions(std::function<void()> wake) : wake_(std::move(wake)) {}

  // Returns the question's number, which is not 0.
  int64_t Ask(PrefixQuestion question) {
    const std::lock_guard lock(mutex_);
    question.number = ++last_number_;
    asked_.push_back(std::move(question));
    changed_.notify_all();
    return last_number_;
  }
  // Waits for a question; none: the time has passed.
  std::optional<PrefixQuestion> Next(double timeout_s) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::duration<double>(timeout_s), [&] { return !asked_.empty(); });
    if (asked_.empty()) return std::nullopt;
    PrefixQuestion question = std::move(asked_.front());
    asked_.pop_front();
    return question;
  }
  void Answer(int64_t number, PrefixAnswer answer) {
    {
      const std::lock_guard lock(mutex_);
      answers_.emplace_back(number, answer);
    }
    wake_();
  }
  std::vector<std::pair<int64_t, PrefixAnswer>> TakeAnswers() {
    const std::lock_guard lock(mutex_);
    return std::exchange(answers_, {});
  }

 private:
  const std::function<void()> wake_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<PrefixQuestion> asked_;
  std::vector<std::pair<int64_t, PrefixAnswer>> answers_;
  int64_t last_number_ = 0;
};

}  // namespace llmi

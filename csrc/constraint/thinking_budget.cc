#include "constraint/thinking_budget.h"

#include <algorithm>
#include <utility>

namespace llmi {

ThinkingBudget::ThinkingBudget(ThinkingLimits limits, bool is_open, std::unique_ptr<TokenConstraint> other)
    : limits_(limits), is_open_(is_open), other_(std::move(other)) {}

void ThinkingBudget::FillMask(std::span<uint32_t> words, int64_t vocab_size) {
  if (other_ != nullptr) {
    other_->FillMask(words, vocab_size);
  } else {
    std::fill(words.begin(), words.end(), ~uint32_t{0});
    if (vocab_size % 32 != 0) words[static_cast<size_t>(vocab_size / 32)] = (uint32_t{1} << (vocab_size % 32)) - 1;
  }
  if (!is_used_up()) return;
  const auto word = static_cast<size_t>(limits_.ends / 32);
  const uint32_t kept = words[word] & (uint32_t{1} << (limits_.ends % 32));
  std::fill(words.begin(), words.end(), 0);
  words[word] = kept;
}

void ThinkingBudget::Advance(int32_t token) {
  if (other_ != nullptr) other_->Advance(token);
  if (is_open_) {
    is_open_ = token != limits_.ends;
    ++num_tokens_;
  } else if (token == limits_.begins) {
    is_open_ = true;
    num_tokens_ = 0;
  }
}

std::unique_ptr<TokenConstraint> ThinkingBudget::Fork() const {
  auto fork = std::make_unique<ThinkingBudget>(limits_, is_open_, other_ == nullptr ? nullptr : other_->Fork());
  fork->num_tokens_ = num_tokens_;
  return fork;
}

std::vector<int32_t> ThinkingBudget::Forced(int64_t max_tokens) {
  if (is_used_up()) return {limits_.ends};
  if (other_ == nullptr) return {};
  return other_->Forced(is_open_ ? std::min(max_tokens, limits_.budget - num_tokens_) : max_tokens);
}

}  // namespace llmi

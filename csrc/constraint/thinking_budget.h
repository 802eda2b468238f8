// A limit on the tokens of a block of thinking: once as many have been drawn behind the mark that begins it, the mark that ends it follows.
// Elsewhere all tokens are allowed, or those of another constraint.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "constraint/token_constraint.h"

namespace llmi {

struct ThinkingLimits {
  std::optional<int32_t> begins;  // the mark's token; none: no block begins in the output
  int32_t ends = 0;
  int64_t budget = 0;
};

class ThinkingBudget : public TokenConstraint {
 public:
  // is_open: the prompt leaves off inside a block. other: null: none.
  ThinkingBudget(ThinkingLimits limits, bool is_open, std::unique_ptr<TokenConstraint> other);
  void FillMask(std::span<uint32_t> words, int64_t vocab_size) override;
  void Advance(int32_t token) override;
  std::unique_ptr<TokenConstraint> Fork() const override;
  bool Accepting() override { return other_ == nullptr || other_->Accepting(); }
  std::vector<int32_t> Forced(int64_t max_tokens) override;
  bool runs_user_code() const override { return other_ != nullptr && other_->runs_user_code(); }

 private:
  bool is_used_up() const { return is_open_ && num_tokens_ >= limits_.budget; }

  const ThinkingLimits limits_;
  bool is_open_;
  int64_t num_tokens_ = 0;  // of the open block
  std::unique_ptr<TokenConstraint> other_;
};

}  // namespace llmi

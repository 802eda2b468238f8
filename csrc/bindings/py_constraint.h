// A Constraint written in Python, behind the core's interface.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <optional>
#include <vector>

#include "bindings/gil.h"
#include "constraint/token_constraint.h"

namespace llmi {

// hooks: Python's RequestHooks, which hold the Constraint and keep its errors. A state is a Python object; forks copy it.
class PyConstraint final : public TokenConstraint {
 public:
  PyConstraint(std::shared_ptr<HeldObject> hooks, uint64_t request_id) : hooks_(std::move(hooks)), request_id_(request_id) {}

  void FillMask(std::span<uint32_t> words, int64_t vocab_size) override;
  // Python is called once a row: the token waits for the next call of another function.
  void Advance(int32_t token) override { pending_.push_back(token); }
  std::unique_ptr<TokenConstraint> Fork() const override;
  bool Accepting() override;
  std::vector<int32_t> Forced(int64_t /*max_tokens*/) override { return {}; }
  bool runs_user_code() const override { return true; }

 private:
  const std::shared_ptr<HeldObject> hooks_;
  const uint64_t request_id_;
  std::unique_ptr<HeldObject> state_;  // null: before the first token
  std::vector<int32_t> pending_;       // tokens after the state
};

}  // namespace llmi

// Drafters, acceptance rules, length and scheduling policies written in Python.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <string>
#include <vector>

#include "bindings/gil.h"
#include "engine/engine.h"

namespace llmi {

// One sequence for which a drafter written in Python proposes tokens. Fields are those of a Seat; arrays are copies.
struct PyDraftQuery {
  uint64_t request_id;
  int64_t sample_index;
  pybind11::array_t<int32_t> token_ids;
  int64_t prompt_len;
  int64_t max_nodes;
  uint32_t round;
  bool wants_laws;
  SamplerState sampler_state;
  pybind11::dict hidden_states;  // {layer: [hidden_size]}
  pybind11::dict hidden_rows;    // {layer: [num_new, hidden_size]}
  int64_t first_row;
};

// runner: Python's DrafterRunner, whose propose() returns a Proposal for each query.
class PyDrafter : public Drafter {
 public:
  PyDrafter(pybind11::object runner, std::string name)
      : Drafter({.name = std::move(name),
                 .expected_acceptance = runner.attr("expected_acceptance").cast<double>(),
                 .hidden_layers = runner.attr("hidden_layers").cast<std::vector<int>>(),
                 .observes = runner.attr("wants_observe").cast<bool>()}),
        runner_(std::move(runner)) {}

  std::unique_ptr<DrafterState> NewState(const SequenceKey& sequence, HeadSource& heads) override;
  void Propose(std::span<Seat> seats) override;
  void Observe(const SequenceKey& sequence, int64_t num_accepted, std::span<const float> target_logprobs) override;

 private:
  HeldObject runner_;
};

// A Verification written in Python. runner: Python's VerificationRunner.
class PyAcceptanceRule : public AcceptanceRule {
 public:
  PyAcceptanceRule(pybind11::object runner, uint64_t request_id) : runner_(std::move(runner)), request_id_(request_id) {}

  bool is_default() const override { return false; }
  double AcceptProbability(int32_t token, std::span<const double> target, std::span<const float> draft) const override;
  void Residual(int32_t token, std::vector<double>* target, std::span<const float> draft) const override;

 private:
  HeldObject runner_;
  uint64_t request_id_;
};

// The rows of a draft for Verification.verify. After that call every method throws Error(kInvalidArgument).
class PyDraftRows {
 public:
  explicit PyDraftRows(DraftRows* rows) : rows_(rows) {}
  void Close() { rows_ = nullptr; }
  std::vector<int32_t> token_ids() const { return Rows().draft().token_ids; }
  std::vector<int32_t> parents() const;
  const std::vector<std::vector<float>>& laws() const { return Rows().draft().laws; }
  pybind11::array_t<float> Logits(int32_t node) const;
  pybind11::array_t<double> Target(int32_t node) const;
  int32_t TargetToken(int32_t node) const;
  double Coin(int32_t node, int32_t lane) const;
  int32_t Draw(const pybind11::array_t<double, pybind11::array::c_style>& probs, int32_t node) const;

 private:
  DraftRows& Rows() const;
  DraftRows& RowsAt(int32_t node) const;  // throws Error(kInvalidArgument) for a node that the draft lacks
  DraftRows* rows_;
};

// A Verification, written in Python, that judges whole drafts. runner: Python's VerificationRunner, whose verify() returns a Verdict.
class PyDraftJudge : public DraftJudge {
 public:
  PyDraftJudge(pybind11::object runner, uint64_t request_id) : runner_(std::move(runner)), request_id_(request_id) {}
  DraftVerdict Judge(DraftRows& rows) const override;

 private:
  HeldObject runner_;
  uint64_t request_id_;
};

class PyPolicy : public PolicyHook {
 public:
  explicit PyPolicy(pybind11::object policy) : policy_(std::move(policy)) {}

  std::vector<double> Key(const PolicyRequest& request, double now_s) override;

 private:
  HeldObject policy_;  // Python's PolicyRunner
};

class PyLengthPolicy : public LengthHook {
 public:
  PyLengthPolicy(pybind11::object policy, uint64_t request_id) : policy_(std::move(policy)), request_id_(request_id) {}

  int64_t Choose(std::span<const double> acceptance, std::span<const double> costs, int64_t num_running) override;

 private:
  HeldObject policy_;
  uint64_t request_id_;
};

}  // namespace llmi

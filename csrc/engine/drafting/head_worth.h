// Whether a trained drafter runs for a sequence, and how far, where the length is "auto": as long as the tokens that it is expected to save
// are worth its time.
//
// Under coupled verification its time is measured, and sequences share what is learnt. Under any other all is a function of the sequence:
// its own record, recorded costs of steps, and for the drafter the share that its weights have of the model's.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "engine/costs.h"
#include "engine/drafting/eagle_runner.h"
#include "engine/drafting/history.h"
#include "engine/running.h"
#include "kernels/ops/context.h"
#include "speculative/cost_curve.h"
#include "speculative/seat.h"

namespace llmi {

// The step so far.
struct StepPlan {
  int64_t num_rows;
  double expected_tokens;
};

class HeadWorth {
 public:
  // head: null if the model was loaded without a trained drafter.
  HeadWorth(StepCosts& costs, DrafterHistories& histories, EagleRunner* head);

  // The step that is drafted for next.
  void BeginStep(const StepPlan& plan) { plan_ = plan; }
  // A step of this many rows, none of a prompt, took so long.
  void LearnStep(int64_t num_rows, double seconds);
  // Learns what the drafter's time was since the last call.
  void LearnHead();
  // Answers for one sequence, which has a LengthRecord by the first question. Both outlive the answer.
  std::unique_ptr<DraftWorth> For(Sample& sample);

 private:
  friend class SampleWorth;
  bool RunsHead(Sample& sample, int64_t max_nodes, const Draft& others);
  bool GoesOn(Sample& sample, std::span<const NodeKind> path);
  // Costs in the step, in its time without drafts for each of its expected tokens.
  struct Step {
    double tokens;
    int64_t num_rows;
    const CostCurve* costs;
    double head;  // one row of the drafter

    // Of the row that follows num_more rows.
    double RowCost(int64_t num_more) const;
  };
  Step StepOf(const Sample& sample) const;

  StepCosts& costs_;
  DrafterHistories& histories_;
  EagleRunner* const head_;
  StepPlan plan_ = {1, 1};
  Price row_seconds_;  // of a step of one row
  double share_ = 0;   // of the drafter's time in that of a step of as many rows
};

}  // namespace llmi

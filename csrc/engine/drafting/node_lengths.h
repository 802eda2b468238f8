// Which nodes of a proposed draft run: those that pay by cost and acceptance, within a budget for drafts that gain nothing. For drafters
// that tell the kinds of nodes, where the length is "auto".
//
// Under coupled verification costs may be measured, and sequences share what they learn. Under any other all is a function of the sequence:
// recorded costs, and a budget and rates of its own.
#pragma once

#include "engine/costs.h"
#include "engine/drafting/history.h"
#include "engine/drafting/lengths.h"
#include "engine/running.h"
#include "kernels/ops/context.h"

namespace llmi {

class NodeLengths {
 public:
  NodeLengths(const KernelContext& context, StepCosts& costs, DrafterHistories& histories)
      : context_(context), costs_(costs), histories_(histories) {}

  // Whether drafts of this request are cut here.
  static bool Serves(const SpeculationConfig& speculation);
  // Sets what a sequence may expect that was not drafted for so far.
  void Begin(Sample& sample);
  // Cuts a draft of at most `limit` nodes to those that pay. plan: of the step, to which they are added.
  void Cut(Sample& sample, Draft* draft, int64_t limit, StepPlan* plan);
  // Learns how the walk over a draft went.
  void Learn(Sample& sample);

 private:
  DraftBudget& BudgetOf(Sample& sample);

  const KernelContext& context_;
  StepCosts& costs_;
  DrafterHistories& histories_;
};

}  // namespace llmi

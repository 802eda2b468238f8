// Which nodes of a proposed draft run: those that pay by cost and acceptance, within a budget for drafts that gain nothing. For drafters
// that tell the kinds of nodes, where the length is "auto".
//
// Under coupled verification costs may be measured, and sequences share what they learn. Under any other all is a function of the sequence:
// recorded costs, and a budget and rates of its own.
#pragma once

#include "engine/costs.h"
#include "engine/drafting/head_worth.h"
#include "engine/drafting/history.h"
#include "engine/drafting/lengths.h"
#include "engine/running.h"
#include "kernels/ops/context.h"

namespace llmi {

class NodeLengths {
 public:
  // head: as for HeadWorth.
  NodeLengths(const KernelContext& context, StepCosts& costs, DrafterHistories& histories, DraftHead* head)
      : context_(context), costs_(costs), histories_(histories), worth_(context, costs, histories, head) {}

  // Whether drafts of this request are cut here.
  static bool Serves(const SpeculationConfig& speculation);
  // Sets what a sequence may expect that was not drafted for so far.
  void Begin(Sample& sample);
  // Whether the drafters are asked in this step. In a large batch few drafts are worth a row, and to ask takes time, too: a sequence whose
  // drafts were left out for a while is asked in every fourth step.
  bool Looks(Sample& sample, const StepPlan& plan);
  // Cuts a draft of at most `limit` nodes to those that pay. One whose tokens were drawn from laws stays whole: to leave out a token
  // because of what it is would change the law of the output. plan: of the step, to which the nodes are added.
  void Cut(Sample& sample, Draft* draft, int64_t limit, StepPlan* plan);
  // Learns how the walk over a draft went.
  void Learn(Sample& sample);
  HeadWorth& worth() { return worth_; }

 private:
  const KernelContext& context_;
  StepCosts& costs_;
  DrafterHistories& histories_;
  HeadWorth worth_;
};

}  // namespace llmi

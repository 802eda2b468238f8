// The number of tokens that a sequence drafts in a step: the request's number, or that of the user's policy, or under "auto" the nodes that
// pay (speculative/node_choice.h).
//
// A drafter that tells the kinds of its nodes proposes first, and the nodes that pay are picked of its draft. Any other gets the number of
// tokens that pays, all of one kind. Under coupled verification measured costs decide, and sequences share what is learnt. If drafts may
// depend on their own sequence alone, its own record and recorded costs decide.
#pragma once

#include <cstdint>

#include "engine/costs.h"
#include "engine/drafting/head_worth.h"
#include "engine/drafting/history.h"
#include "engine/running.h"
#include "kernels/ops/context.h"
#include "scheduler/scheduler.h"
#include "speculative/node_choice.h"

namespace llmi {

class NodeLengths {
 public:
  NodeLengths(const Scheduler& scheduler, StepCosts& costs, DrafterHistories& histories, EagleRunner* head)
      : scheduler_(scheduler), costs_(costs), histories_(histories), worth_(costs, histories, head) {}

  // Whether nodes are picked of this request's drafts.
  static bool Picks(const SpeculationConfig& speculation);
  // Upper limit of a draft's nodes: the request's number, or 16. Drafts that may be cut get at most `room`, the rows left in the step.
  static int64_t Limit(const Sample& sample, int64_t room);

  // Begins the sequence's record if its lengths are chosen.
  void Begin(Sample& sample);
  // Whether the drafters are asked in this step. In a large batch few drafts are worth a row, and to ask takes time, too: a sequence whose
  // drafts were left out for a while is asked in every fourth step.
  bool Looks(Sample& sample, const StepPlan& plan);
  // The length to request, in [0, limit]. plan: the length is added to it. Throws Error(kHook) from the user's policy.
  int64_t Choose(Sample& sample, int64_t limit, StepPlan* plan);
  // Cuts a draft of at most `limit` nodes to those that pay, within a budget for drafts that gain nothing. One whose tokens were drawn from
  // laws stays whole: to leave out a token because of what it is would change the law of the output. plan: the nodes are added to it.
  void Cut(Sample& sample, Draft* draft, int64_t limit, StepPlan* plan);
  // Learns how the walk over a draft went, which no stop rule has ended. depth: of the draft.
  void Learn(Sample& sample, int64_t depth);

  HeadWorth& worth() { return worth_; }

 private:
  LengthQuestion QuestionOf(const Sample& sample, const StepPlan& plan, int64_t max_length) const;
  int64_t ChooseByNode(Sample& sample, int64_t limit, StepPlan* plan);

  const Scheduler& scheduler_;
  StepCosts& costs_;
  DrafterHistories& histories_;
  HeadWorth worth_;
};

}  // namespace llmi

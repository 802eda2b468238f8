// The drafts of a step. Before the forward, drafters propose for the sequences that decode; after it, the outcome is recorded. Engine
// thread only.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "cache/kv_cache.h"
#include "engine/active_requests.h"
#include "engine/costs.h"
#include "engine/drafting/history.h"
#include "engine/drafting/hidden_keeper.h"
#include "engine/drafting/node_lengths.h"
#include "engine/drafting/trained_heads.h"
#include "kernels/ops/context.h"
#include "model/decoder.h"
#include "model/draft_heads.h"
#include "scheduler/scheduler.h"

namespace llmi {

class Drafting {
 public:
  Drafting(const KernelContext& context, Decoder& decoder, DraftHeads heads, KvCache& cache, Scheduler& scheduler, StepCosts& costs,
           ActiveRequests& requests, const SchedulerConfig& limits);

  // Call it before a step is scheduled. Proposes for sequences whose drafts are accepted and rejected (Sample::judges_drafts). Each token
  // of such a sequence has one draft, and the whole draft goes into the step that computes the token. That may be a later step than the
  // next (scheduler.h), so drafts do not depend on which sequences share a step.
  void ProposeWhole();
  // Call it when a step is scheduled. Gives it the drafts that wait, and proposes for the other sequences in the rows that are left.
  // Removes the pieces of requests that failed.
  void ProposeForStep(std::vector<ScheduledPiece>* pieces);
  // Nothing comes of the steps under way: their drafts on which tokens depend wait for the next ones, others are forgotten.
  void GiveUp();
  // Call it when the step's tokens are committed and before its rows are processed: keeps the hidden states that drafters read.
  void KeepHidden(const LaunchedStep& step) { hidden_.Keep(step); }
  // Call it after the walks. Records statistics and acceptance, tells drafters what they observe, and gives reserved slots back.
  // seconds: of the step.
  void EndWalks(const LaunchedStep& step, double seconds);

 private:
  // One drafter's part of a step: seats[i] is for samples[i].
  struct Call {
    Drafter* drafter;
    std::vector<Sample*> samples;
    std::vector<Seat> seats;
    bool picks_nodes = false;      // lengths are chosen after the drafts are proposed
    int64_t num_start_tokens = 0;  // of sequences that are new to the drafter
  };
  void Propose(const std::vector<Sample*>& samples, StepPlan plan);
  void Plan(Call& call);
  void ProposePlanned(const std::vector<std::pair<Sample*, int64_t>>& planned);
  std::vector<Call> ChooseCalls(const std::vector<Sample*>& samples, StepPlan* plan);
  void AddToCall(Sample& sample, StepPlan* plan, std::vector<Call>* calls, std::vector<Drafter*>* resting);
  void Ask(Call& call);
  void BeginStates(Sample& leader);
  Seat MakeSeat(Sample& sample, int64_t max_nodes);
  static Call& CallOf(Drafter* drafter, bool picks_nodes, std::vector<Call>* calls);
  void PickNodes(Sample& sample, Seat& seat, StepPlan* plan);
  void Take(Sample& sample, Seat& seat);
  void CheckFits(const Sample& sample, const Draft& draft) const;
  void EndWalk(Sample& sample, double verify_seconds);

  const KernelContext& context_;
  KvCache& cache_;
  Scheduler& scheduler_;
  ActiveRequests& requests_;
  const int64_t vocab_size_;
  const int64_t max_num_batched_tokens_;
  TrainedHeads heads_;
  HiddenKeeper hidden_;
  DrafterHistories histories_;
  NodeLengths lengths_;
};

}  // namespace llmi

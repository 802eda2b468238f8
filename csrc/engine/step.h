// One iteration of the engine: schedule, draft, forward, draw, commit, emit. Engine thread only.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "cache/kv_cache.h"
#include "engine/active_requests.h"
#include "engine/ahead.h"
#include "engine/batch.h"
#include "engine/config.h"
#include "engine/costs.h"
#include "engine/drafting/drafting.h"
#include "engine/rows/row_processor.h"
#include "engine/running.h"
#include "engine/stats.h"
#include "kernels/ops/context.h"
#include "model/decoder.h"
#include "model/draft_heads.h"
#include "scheduler/scheduler.h"

namespace llmi {

class StepLoop {
 public:
  StepLoop(const KernelContext& context, Decoder& decoder, DraftHeads heads, KvCache& cache, Scheduler& scheduler, ActiveRequests& requests,
           StepCosts& costs, const EngineConfig& config);

  // launches: whether a step may begin; else steps under way end.
  void Run(bool launches = true);
  // Ends the steps that are under way, of which nothing will come: their drafts wait, or are forgotten.
  void GiveUp();
  // Whether a step was launched whose tokens are not known yet.
  bool is_ahead() const { return ahead_.is_pending() || has_in_flight(); }
  // Whether steps are under way in the stages of a pipeline.
  bool has_in_flight() const { return !in_flight_.empty(); }
  void DropAhead() { ahead_.Drop(); }
  // Sets the counters of steps.
  void Count(EngineStats* stats);

 private:
  std::unique_ptr<LaunchedStep> Launch();
  void RunStages(bool launches);
  void Complete(LaunchedStep& step);
  void AddPiece(const ScheduledPiece& piece, BatchBuilder* builder, std::vector<LogitsRow>* rows);
  void AddCompanions(const std::vector<ScheduledPiece>& pieces, BatchBuilder* builder, LaunchedStep* step);
  ForwardBatch BuildBatch(const std::vector<ScheduledPiece>& pieces, LaunchedStep* step);
  void FailBrokenStates(const LaunchedStep& step);

  const KernelContext& context_;
  Decoder& decoder_;
  KvCache& cache_;
  Scheduler& scheduler_;
  ActiveRequests& requests_;
  StepCosts& costs_;
  const std::shared_ptr<PolicyHook> policy_;
  Drafting drafting_;
  RowProcessor rows_;
  StepAhead ahead_;
  std::deque<std::unique_ptr<LaunchedStep>> in_flight_;  // the oldest first
  int num_empty_steps_ = 0;                              // in a row
  int64_t num_steps_ = 0;
  int64_t num_step_rows_ = 0;  // of the last step
  int64_t num_prompt_tokens_ = 0;
};

}  // namespace llmi

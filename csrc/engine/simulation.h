// An engine under a clock of its own: the scheduler, the KV cache without its memory and the prefix tree are the real ones; a step takes
// what a formula says, and an output has as many tokens as it was given.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "cache/kv_cache.h"
#include "engine/policy.h"
#include "scheduler/scheduler.h"
#include "speculative/cost_curve.h"

namespace llmi {

// Seconds of a step: those of its rows, kv_s for each token of K and V that its sequences have after it, logits_s for each row of logits,
// and draft_s for each token of a draft.
struct SimulatedCosts {
  CostCurve rows;
  double kv_s = 0;
  double logits_s = 0;
  double draft_s = 0;
};

// Each decode brings a draft of num_tokens, or of as many as its output may still take and free pages hold; each of them is accepted with
// the same probability if those before it were.
struct SimulatedDrafts {
  int64_t num_tokens = 0;
  double acceptance = 0;
};

struct SimulatedConfig {
  SchedulerConfig scheduler;
  int64_t num_pages = 0;
  bool prefix_caching = true;
  bool streams = true;  // outputs are read as they grow: prompts may slow decodes by the factor that the engine allows
  SimulatedCosts costs;
  SimulatedDrafts drafts;
  std::shared_ptr<PolicyHook> policy;  // under kCustom
};

struct SimulatedRequest {
  std::vector<int32_t> tokens;  // the prompt
  int64_t num_given = 0;        // of its first tokens, whose K and V come with it: whole blocks of them
  int64_t num_output = 1;
  int64_t num_samples = 1;  // outputs of one prompt, which fork behind it
  int64_t priority = 0;
  uint64_t number = 0;  // for the policy: of all requests of a load
  double arrival_s = 0;
  // The result.
  double first_token_s = -1;  // -1: none yet
  double end_s = -1;          // of the last sample
  int64_t num_cached = 0;
  int64_t num_preemptions = 0;
};

struct SimulatedStep {
  double start_s = 0;
  double seconds = 0;
  int64_t num_rows = 0;
  int64_t num_decodes = 0;  // with their drafts
  int64_t num_prompt_tokens = 0;
  int64_t kv_tokens = 0;   // the lengths of its sequences after it
  int64_t used_pages = 0;  // pages that some sequence holds after it
};

class SimulatedEngine {
 public:
  // Throws Error(kInvalidArgument) for a pool without a page.
  SimulatedEngine(const KvGroups& groups, const SimulatedConfig& config);
  ~SimulatedEngine();
  SimulatedEngine(const SimulatedEngine&) = delete;
  SimulatedEngine& operator=(const SimulatedEngine&) = delete;

  // A request that comes at arrival_s, which is not before that of the last one. Throws Error(kInvalidArgument) if it could never run.
  void Add(SimulatedRequest request);
  // Runs the steps that begin before this time.
  void RunUntil(double time_s);
  // Runs all requests to their end.
  void RunToEnd();
  int64_t num_under_way() const { return num_under_way_; }          // sequences
  int64_t num_queued_tokens() const { return num_queued_tokens_; }  // of the prompts of requests that have no token yet
  const std::deque<SimulatedRequest>& requests() const { return requests_; }
  const std::vector<SimulatedStep>& steps() const { return steps_; }
  const Scheduler& scheduler() const { return scheduler_; }
  int64_t num_pages() const { return cache_.pool().num_pages(); }
  // Bytes of K and V that a request's first num_tokens take, as whole blocks.
  int64_t BlockBytes(int64_t num_tokens) const;

 private:
  struct Running {  // a sample
    SimulatedRequest* request;
    std::vector<int32_t> tokens;  // the prompt and the output so far
    int64_t num_left;
    int64_t num_drafted = 0;  // in this step
    ScheduledSequence scheduled;
  };
  void Take();
  void TakeGiven(const SimulatedRequest& request);
  void SetKeys();
  void Step();
  int64_t PromptBudget() const;
  void Draft(const std::vector<ScheduledPiece>& pieces);
  void StartSiblings(Running& leader);
  void TakeTokens(Running& running);
  void Finish(Running& running);

  const SimulatedConfig config_;
  KvCache cache_;
  Scheduler scheduler_;
  double now_s_ = 0;
  std::deque<SimulatedRequest> requests_;  // in the order of their arrivals; those that run or have ended are without tokens
  size_t num_taken_ = 0;
  int num_empty_steps_ = 0;  // in a row
  int64_t num_under_way_ = 0;
  int64_t num_queued_tokens_ = 0;
  std::vector<std::unique_ptr<Running>> running_;  // by arrival; null: it has ended, or has not forked yet
  std::vector<SimulatedStep> steps_;
};

}  // namespace llmi

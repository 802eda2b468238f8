// Which sequences run in the next step, and how many of their tokens. Knows counts and block tables only: it
// runs in a test without weights.
//
// Continuous batching (Orca): sequences join and leave at every step. Long prompts are cut to the step's token
// budget, after one token has been set aside for every running decode (Sarathi-Serve). When pages run out the
// youngest running sequence gives its pages back and is computed again later, from what the prefix cache still has, or, on a
// device, takes its blocks back from the host, where that is cheaper; results do not change by a bit. So that
// this stays rare, a sequence waits while it and the running ones together are expected to outgrow the pool ("past-future"
// scheduling: Gong et al., 2025).
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cache/kv_cache.h"

namespace llmi {

enum class SchedulingPolicy : uint8_t {
  kFcfs,               // first come, first served
  kPriority,           // smaller priority first, then first come
  kStatic,             // baseline: a new batch starts when the last one has ended; finished rows are computed until then
  kPrefillFirst,       // baseline: waiting prompts are computed, whole and alone, before any decode goes on
  kShortestRemaining,  // least work left first: prompt tokens to compute and output tokens that may come
  kLongestPrefix,      // most tokens in the prefix cache first
  kCustom,             // by ScheduledSequence::key, which the engine sets
};

// A sequence that others have overtaken so often goes first, whatever the policy: nobody starves.
constexpr int64_t kMaxOvertaken = 64;

// A sequence as the scheduler sees it; embedded in the engine's own record.
struct ScheduledSequence {
  void* owner = nullptr;  // the engine's record; the scheduler does not look at it
  uint64_t arrival = 0;   // order of submission
  int64_t priority = 0;
  int64_t num_seats = 1;                            // sequences that it will grow into (n samples), for max_num_seqs
  int64_t num_tokens = 0;                           // tokens known: prompt and output so far
  const std::vector<int32_t>* token_ids = nullptr;  // these tokens; null: not for the prefix cache
  std::string cache_salt;
  int64_t max_new_tokens = 0;            // that it may still draw
  int64_t allowance = 0;                 // that it might draw when it came
  std::vector<double> key;               // smallest first, under kCustom
  int64_t num_overtaken = 0;             // later arrivals that were admitted before it
  int64_t first_wanted_row = INT64_MAX;  // rows from here on must be computed, whatever the prefix cache holds
  int64_t num_cached = 0;                // tokens that the prefix cache gave when it first ran
  int64_t num_drafted = 0;               // rows that go into a step behind its last token: all of them, or the token waits a step
  KvSequence kv;                         // kv.num_tokens of them are computed
  bool finished = false;                 // a static batch keeps its finished rows
  int64_t num_preemptions = 0;
  int64_t max_computed = 0;                     // most tokens that were ever computed, to count recomputed ones
  std::shared_ptr<const KvHostCopy> host_copy;  // of a preempted one, if its blocks went to the host
};

struct ScheduledPiece {
  ScheduledSequence* sequence;
  int64_t num_new;  // tokens to compute on top of kv.num_tokens
  // Rows of its draft behind them: sequence->num_drafted if these reach its last token, else 0. Blocks are reserved for them, too.
  int64_t num_drafted = 0;
};

struct SchedulerConfig {
  SchedulingPolicy policy = SchedulingPolicy::kFcfs;
  int64_t max_num_seqs = 256;
  int64_t max_num_batched_tokens = 2048;
  double waiting_served_ratio = 0;  // > 0: when waiting >= ratio x running, decodes pause for one prefill (TGI's meaning)
  bool chunked_prefill = true;      // false: a prompt enters a step whole or not at all
};

class Scheduler {
 public:
  Scheduler(SchedulerConfig config, KvCache* cache) : config_(config), cache_(cache) {}

  // Whether a sequence that is preempted has its blocks copied to the host. Unset: none.
  void set_swap_rule(std::function<bool(const ScheduledSequence&)> rule) { swap_rule_ = std::move(rule); }

  // A new sequence (kv initialised, empty) queues; a forked one (kv filled) runs at once.
  void Add(ScheduledSequence* sequence);
  void AddRunning(ScheduledSequence* sequence);
  // Out of both queues; its pages are the caller's to free.
  void Remove(ScheduledSequence* sequence);
  bool Contains(const ScheduledSequence* sequence) const;

  // Gives back the pages of the running sequence that is last in precedence; it will be computed again. False if none runs.
  bool PreemptOne();
  // Gives back the pages that a waiting sequence holds already; false if none does.
  bool DropWaitingCache();

  // Reserves pages for the returned pieces. Empty while work exists only if nothing fits (a caller's error:
  // admission refuses what cannot run alone).
  // prompt_budget: most prompt tokens in a step that decodes too, so that a long prompt does not stall them.
  // A step exceeds its token budget only if its first piece is one token with a longer draft.
  std::vector<ScheduledPiece> Schedule(int64_t prompt_budget = INT64_MAX);
  const std::deque<ScheduledSequence*>& waiting() const { return waiting_; }
  const std::vector<ScheduledSequence*>& running() const { return running_; }
  // The pieces were computed.
  void Commit(const std::vector<ScheduledPiece>& pieces);
  // Results are in. The finished rows of a static batch leave together, when the last one has ended; the engine
  // frees the pages of what it then finds outside.
  void EndStep();

  bool HasWork() const { return !running_.empty() || !waiting_.empty(); }
  int64_t num_running() const { return static_cast<int64_t>(running_.size()); }
  int64_t num_waiting() const { return static_cast<int64_t>(waiting_.size()); }
  int64_t num_preemptions() const { return num_preemptions_; }
  int64_t num_recomputed_tokens() const { return num_recomputed_tokens_; }
  int64_t num_restored_tokens() const { return num_restored_tokens_; }  // from copies on the host
  int64_t num_prefix_queries() const { return num_prefix_queries_; }    // tokens looked for in the prefix cache
  int64_t num_prefix_hits() const { return num_prefix_hits_; }          // and found

 private:
  bool Before(const ScheduledSequence* a, const ScheduledSequence* b) const;
  bool SortsWaiting() const;
  void OrderWaiting();
  void ScheduleRunning(int64_t* budget, int64_t* prompt_budget, std::vector<ScheduledPiece>* pieces);
  void AdmitWaiting(int64_t* budget, int64_t* prompt_budget, std::vector<ScheduledPiece>* pieces);
  int64_t ExpectedTokens(const ScheduledSequence& sequence) const;
  bool OutgrowsPool(const ScheduledSequence& newcomer) const;
  // Gives a running sequence blocks for its piece, from those behind it if need be; false if it does not run in this step.
  bool ReserveRunning(ScheduledPiece* piece, bool alone);
  void GiveBack(ScheduledSequence* sequence);  // all its pages; it stays known to the cache
  void PreemptLast();
  void AttachPrefix(ScheduledSequence* sequence);
  bool FitsBesideRunning(const ScheduledSequence& sequence, int64_t num_pages) const;
  bool RestoreCopy(ScheduledSequence* sequence);
  bool WaitsForPrefix(const ScheduledSequence& sequence, const std::vector<ScheduledPiece>& pieces) const;

  SchedulerConfig config_;
  KvCache* cache_;
  std::vector<ScheduledSequence*> running_;  // in order of precedence
  std::deque<ScheduledSequence*> waiting_;   // in order of precedence
  double drawn_share_ = 0.5;                 // of their allowance, that sequences drew before they left: a running mean
  int64_t num_left_ = 1;                     // sequences in it, the guess that it starts with among them
  int64_t num_preemptions_ = 0;
  int64_t num_recomputed_tokens_ = 0;
  int64_t num_restored_tokens_ = 0;
  std::function<bool(const ScheduledSequence&)> swap_rule_;
  int64_t num_prefix_queries_ = 0;
  bool paused_decodes_ = false;  // in the step before
  int64_t num_prefix_hits_ = 0;
};

}  // namespace llmi

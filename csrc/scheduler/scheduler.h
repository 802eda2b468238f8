// Decides which sequences run in the next step, and how many tokens of each. It knows only counts and block tables, so tests run it without
// weights.
//
// Continuous batching (Orca): sequences join and leave at every step. Long prompts are cut to the step's token budget, after one token has
// been set aside for each running decode (Sarathi-Serve). When pages run out, the youngest running sequence is preempted: it gives its
// pages back. Later it is computed again from the part that the prefix cache still has; on a device its blocks are copied to the host and
// back where that is cheaper. Neither changes a bit of the results. To keep preemption rare, a sequence waits while it and the running ones
// together are expected to need more pages than the pool has ("past-future" scheduling: Gong et al., 2025).
//
// A sequence may have a companion with a cache of its own (guidance). The two are one entry of the queues: they get and lose pages
// together, and the last known tokens of both run in the same step. A lone sequence costs the same as without this.
//
// A running sequence all of whose tokens are computed idles: a beam that waits for the other beams of its search. It has no piece until it
// gets a token. When pages are short, idle sequences give theirs first, whatever their precedence, so that beams cannot block each other;
// such a sequence leaves the queues, and its owner adds it again when it gets a token.
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
  kPrefillFirst,       // baseline: waiting prompts are computed, whole and alone, before any decode continues
  kShortestRemaining,  // the sequence with the fewest tokens left first: prompt tokens to compute plus output tokens that may follow
  kLongestPrefix,      // the sequence with the most tokens in the prefix cache first
  kCustom,             // by ScheduledSequence::key, which the engine sets
};

// A sequence that later arrivals have overtaken this often goes first, whatever the policy, so no sequence waits without end.
constexpr int64_t kMaxOvertaken = 64;

struct Sample;

// A sequence as the scheduler sees it; embedded in the engine's own record.
struct ScheduledSequence {
  Sample* owner = nullptr;  // the engine's record, of which the scheduler knows nothing
  uint64_t arrival = 0;     // order of submission
  int64_t priority = 0;
  int64_t num_seats = 1;                            // sequences that it will grow into (n samples), for max_num_seqs
  int64_t num_tokens = 0;                           // known tokens: the prompt and the output so far
  const std::vector<int32_t>* token_ids = nullptr;  // these tokens; null: the sequence does not use the prefix cache
  std::string cache_salt;
  int64_t max_new_tokens = 0;              // the most tokens that it may still draw
  int64_t allowance = 0;                   // max_new_tokens when it was submitted
  std::vector<double> key;                 // smallest first, under kCustom
  int64_t num_overtaken = 0;               // number of later arrivals that were admitted before it
  int64_t first_wanted_row = INT64_MAX;    // rows from here on must be computed, whatever the prefix cache holds
  int64_t first_streamed_row = INT64_MAX;  // likewise: their hidden states go to a drafter
  int64_t num_cached = 0;                  // tokens that the prefix cache gave it when it first ran
  // Draft rows after its last token; if not all fit into a step, the last token waits, too. They run even if no token is left to compute.
  int64_t num_drafted = 0;
  KvSequence kv;           // kv.num_tokens of the known tokens are computed
  bool finished = false;   // a static batch keeps its finished rows
  bool in_flight = false;  // a step computes it that has not ended: it joins no other, and keeps its pages
  int64_t num_preemptions = 0;
  int64_t max_computed = 0;                     // the most tokens that were ever computed, to count recomputed ones
  std::shared_ptr<const KvHostCopy> host_copy;  // the blocks of a preempted sequence, if they were copied to the host
  // A sequence that runs with this one; null: none. Only its num_tokens, token_ids, cache_salt and kv are used, and num_cached and
  // max_computed are set; it is in no queue. Such a pair is not copied to the host.
  ScheduledSequence* companion = nullptr;
};

// Whether only the last known token of the sequence, and that of its companion, is not computed; or only a draft after it.
bool IsDecode(const ScheduledSequence& sequence);

// The most tokens that may come from the prefix cache. The last token is always computed, since the next one is drawn from its row.
int64_t MostCached(const ScheduledSequence& sequence);

struct ScheduledPiece {
  ScheduledSequence* sequence;
  int64_t num_new;  // tokens to compute after the first kv.num_tokens
  // Draft rows after these tokens: sequence->num_drafted if the last known token is among them, else 0. They have reserved blocks, too.
  int64_t num_drafted = 0;
  // The same for the sequence's companion. Draft rows follow its last token, too.
  int64_t num_companion = 0;

  int64_t num_tokens() const { return num_new + num_companion; }  // without drafts
  int64_t num_rows() const { return num_tokens() + num_drafted * (sequence->companion == nullptr ? 1 : 2); }
};

struct SchedulerConfig {
  SchedulingPolicy policy = SchedulingPolicy::kFcfs;
  int64_t max_num_seqs = 256;
  int64_t max_num_batched_tokens = 2048;
  double waiting_served_ratio = 0;  // > 0: when waiting >= ratio x running, decodes pause for one prefill (TGI's meaning)
  bool chunked_prefill = true;      // false: a prompt enters a step whole or not at all
  int64_t num_in_flight = 1;        // steps that are computed at the same time: running sequences are divided among them
};

class Scheduler {
 public:
  Scheduler(SchedulerConfig config, KvCache* cache) : config_(config), cache_(cache) {}

  // rule: whether a preempted sequence's blocks are copied to the host. Unset: they never are.
  void set_swap_rule(std::function<bool(const ScheduledSequence&)> rule) { swap_rule_ = std::move(rule); }

  // Add queues a new sequence, whose kv is initialised and empty. AddRunning lets a forked sequence, whose kv is filled, run at once.
  void Add(ScheduledSequence* sequence);
  void AddRunning(ScheduledSequence* sequence);
  // Removes the sequence from both queues. The caller frees its pages.
  void Remove(ScheduledSequence* sequence);
  bool Contains(const ScheduledSequence* sequence) const;

  // Preempts the running sequence that is last in precedence: its pages are given back, and it will be computed again. Returns false if no
  // sequence runs.
  bool PreemptOne();
  // Gives back the pages of a waiting sequence that already holds some. Returns false if no waiting sequence does.
  bool DropWaitingCache();

  // Chooses the pieces of the next step and reserves pages for them. If there is work, the result is empty only if no sequence fits alone,
  // which is an error of the caller: it must refuse such sequences.
  // prompt_budget: the most prompt tokens of a step that also has decodes, so that a long prompt does not stall them.
  // A step exceeds its token budget only if its first piece is one token whose draft is longer than the budget.
  std::vector<ScheduledPiece> Schedule(int64_t prompt_budget = INT64_MAX);
  const std::deque<ScheduledSequence*>& waiting() const { return waiting_; }
  const std::vector<ScheduledSequence*>& running() const { return running_; }
  // Call it when the pieces are computed.
  void Commit(const std::vector<ScheduledPiece>& pieces);
  // Call it when the step's tokens are known. The rows of a static batch leave together when the last one has finished. The engine then
  // frees the pages of sequences that the scheduler no longer contains.
  void EndStep();

  bool HasWork() const { return !running_.empty() || !waiting_.empty(); }
  const SchedulerConfig& config() const { return config_; }
  // What the outputs so far have told about the next ones is forgotten. Only without work.
  void ForgetLengths();
  int64_t num_running() const { return static_cast<int64_t>(running_.size()); }
  int64_t num_waiting() const { return static_cast<int64_t>(waiting_.size()); }
  int64_t num_preemptions() const { return num_preemptions_; }
  int64_t num_recomputed_tokens() const { return num_recomputed_tokens_; }
  int64_t num_restored_tokens() const { return num_restored_tokens_; }  // tokens restored from copies on the host
  int64_t num_prefix_queries() const { return num_prefix_queries_; }    // tokens searched in the prefix cache
  int64_t num_prefix_hits() const { return num_prefix_hits_; }          // those of them that were found

 private:
  std::vector<ScheduledPiece> Choose(int64_t prompt_budget);
  bool Before(const ScheduledSequence* a, const ScheduledSequence* b) const;
  bool SortsWaiting() const;
  void OrderWaiting();
  void ScheduleRunning(int64_t* budget, int64_t* prompt_budget, std::vector<ScheduledPiece>* pieces);
  void AdmitWaiting(int64_t* budget, int64_t* prompt_budget, std::vector<ScheduledPiece>* pieces);
  int64_t ExpectedTokens(const ScheduledSequence& sequence) const;
  bool OutgrowsPool(const ScheduledSequence& newcomer) const;
  bool TryReserve(const ScheduledPiece& piece);
  int64_t PagesNeeded(const ScheduledPiece& piece) const;
  // Reserves blocks for a running sequence's piece; if pages are short, preempts sequences after it in precedence. Returns false if the
  // sequence does not run in this step.
  bool ReserveRunning(ScheduledPiece* piece, bool alone);
  bool ReserveWaiting(ScheduledPiece* piece);
  void GiveBack(ScheduledSequence* sequence);  // gives back all its pages; the cache keeps it as an empty sequence
  void PreemptLast();
  ScheduledSequence* LastFree() const;
  bool BatchHasEnded() const;
  bool PreemptIdle();
  void Preempt(ScheduledSequence* victim);
  void AttachPrefix(ScheduledSequence* sequence);
  bool FitsBesideRunning(const ScheduledSequence& sequence, int64_t num_pages) const;
  bool RestoreCopy(ScheduledSequence* sequence);
  void CommitPart(ScheduledSequence& sequence, int64_t num_new, bool finished);
  bool WaitsForPrefix(const ScheduledSequence& sequence, const std::vector<ScheduledPiece>& pieces) const;

  SchedulerConfig config_;
  KvCache* cache_;
  std::vector<ScheduledSequence*> running_;      // in order of precedence
  std::deque<ScheduledSequence*> waiting_;       // in order of precedence
  double drawn_share_ = 0.5;                     // running mean of tokens drawn / allowance over finished sequences, to predict memory
  int64_t num_left_ = 1;                         // weight of that mean, at most kDrawnMemory; starts at 1 for the first guess, 0.5
  const ScheduledSequence* admitted_ = nullptr;  // the waiting pair that is admitted now: its cache is not dropped for its own sake
  int64_t num_preemptions_ = 0;
  int64_t num_recomputed_tokens_ = 0;
  int64_t num_restored_tokens_ = 0;
  std::function<bool(const ScheduledSequence&)> swap_rule_;
  int64_t num_prefix_queries_ = 0;
  bool paused_decodes_ = false;  // whether decodes paused in the previous step (waiting_served_ratio)
  int64_t num_prefix_hits_ = 0;
};

}  // namespace llmi

// Requests to the engine, hooks of user code, and outputs.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "constraint/token_constraint.h"
#include "core/errors.h"
#include "engine/beams/params.h"
#include "model/steering.h"
#include "sampling/logprobs.h"
#include "sampling/params.h"
#include "speculative/drafter.h"
#include "speculative/verify.h"

namespace llmi {

// The context of one token, for hooks. Valid during the call.
struct HookContext {
  int64_t sample_index = 0;
  int64_t slot = 0;                                 // the state that is used: the sample's own, or a negative one for a trial
  const std::vector<int32_t>* token_ids = nullptr;  // prompt and output
  int64_t prompt_len = 0;
  const std::string* output_text = nullptr;
  bool batched = false;  // the engine-wide processors have changed this row already
};

// User code of one request. It is called on the engine thread, once per emitted token, in the order of plain decoding.
// An exception ends only this request. Implementations throw Error(kHook), or Error(kInterrupted) if the request's caller waits no longer.
class RequestHooks {
 public:
  virtual ~RequestHooks() = default;
  virtual bool HasProcessors() const = 0;
  virtual bool HasOwnProcessors() const = 0;  // others than the engine-wide ones
  virtual bool HasSampler() const = 0;
  virtual bool HasCriteria() const = 0;
  virtual void ProcessLogits(const HookContext& context, float* logits, int64_t vocab_size) = 0;
  virtual int32_t Sample(const HookContext& context, const float* law, int64_t vocab_size) = 0;
  // A trial is a draft's node: its processors have a state of their own, which begins as a copy. All trials end together.
  virtual void CopyState(int64_t from_slot, int64_t to_slot) = 0;
  virtual void EndTrials() = 0;
  // Returns the stop reason, which may be the empty string; nullopt if the sample goes on.
  virtual std::optional<std::string> ShouldStop(const HookContext& context, const float* logits, int64_t vocab_size) = 0;
};

// Engine-wide processors. They get all rows of a step that are ready at the same time. Called on the engine thread. Rows must not
// influence each other: which rows share a call depends on timing.
class BatchHook {
 public:
  struct Row {
    RequestHooks* hooks;
    HookContext context;
    std::optional<Error> error;  // ends only this row's request
  };
  virtual ~BatchHook() = default;
  // logits [rows, vocab_size], in place.
  virtual void Apply(std::span<Row> rows, float* logits, int64_t vocab_size) = 0;
};

// Replaces the rule for draft lengths. Called on the engine thread; throws Error(kHook).
class LengthHook {
 public:
  virtual ~LengthHook() = default;
  // acceptance: probability by depth; costs: seconds of a step of 1, 2, ... rows; returns a length, cut to what fits.
  virtual int64_t Choose(std::span<const double> acceptance, std::span<const double> costs, int64_t num_running) = 0;
};

enum class VerificationKind : uint8_t {
  kCoupled,  // draws as plain decoding does, so the tokens are the same
  kRule,     // accepts and rejects by `rule`, token by token: the exact law by default
  kJudge,    // `judge` decides about the whole draft
};

// Speculation for one request.
struct SpeculationConfig {
  std::shared_ptr<Drafter> drafter;
  VerificationKind verification = VerificationKind::kCoupled;
  std::shared_ptr<const AcceptanceRule> rule;  // under kRule
  std::shared_ptr<const DraftJudge> judge;     // under kJudge
  int64_t num_tokens = -1;                     // most nodes of a draft; -1: chosen in each step by cost and acceptance
  std::shared_ptr<LengthHook> length_policy;
};

// Statistics of speculation for one continuation.
struct SpeculationStats {
  int64_t num_drafts = 0;
  int64_t num_draft_tokens = 0;
  int64_t num_accepted_tokens = 0;
  std::vector<int64_t> num_accepted_per_position;  // by depth
  double draft_time_s = 0;                         // this continuation's share of its drafter's calls
  double verify_time_s = 0;                        // this continuation's share, by rows, of the forwards that verified
};

struct LabSequence;

// One token that was tried at one position.
struct TraceRow {
  int64_t step = 0;      // of the engine
  int64_t position = 0;  // in prompt and output
  int32_t depth = 0;     // within one step: 1 follows the last committed token
  int32_t token_id = 0;
  float raw_logprob = 0;
  float processed_logprob = 0;  // -inf where cut
  int32_t rank = 0;             // by raw logit, 1 is the largest
  int64_t num_kept = 0;         // tokens that the filters kept
  double noise = 0;             // log E of the exponential race, -Gumbel; NaN at temperature 0
  float draft_prob = 0;         // the drafter's probability of the token; NaN if it was not drafted
  int8_t accepted = -1;         // 1 or 0 for a drafted token; -1: the token was drawn
  double time_s = 0;            // steady clock
  // What the masks cost at this position. NaN in a beam search, whose rows are not kept.
  double forbidden_mass = std::numeric_limits<double>::quiet_NaN();  // softmax of the row before masks, over the tokens that they forbid
  double mask_kl = std::numeric_limits<double>::quiet_NaN();         // KL(softmax over the allowed ones || softmax) = -log(1 - mass), nats
};

// The logits of one of the foremost tokens of a position, by stage (sampling/law.h).
struct TraceCandidate {
  int64_t position = 0;
  int32_t token_id = 0;
  float raw = 0;
  float masked = 0;
  float penalised = 0;
  float processed = 0;
  float tempered = 0;  // at temperature 0: processed
  float drawn = 0;     // what is drawn from: after the filters and all later steps; -inf where cut. Contrastive search: the score
  int8_t kept = 0;     // by the filters
  double noise = 0;    // as in TraceRow
  int8_t chosen = 0;
};

enum class FinishReason : uint8_t { kNone, kStop, kLength, kAbort, kError };

// One continuation of a request.
struct SampleOutput {
  std::vector<int32_t> token_ids;
  std::string text;
  double cumulative_logprob = 0;                            // under beams: the sum that was scored
  double score = std::numeric_limits<double>::quiet_NaN();  // of a beam's hypothesis: cumulative_logprob / length^length_penalty
  std::vector<int32_t> beam_indices;    // of a beam's hypothesis, per token: its parent's rank among the running beams of the step before
  std::vector<TokenLogprobs> logprobs;  // per token, if the request wants them
  std::vector<double> token_times_s;    // steady clock, per token
  SpeculationStats speculation;
  std::vector<TraceRow> trace;             // if the request wants it
  std::vector<TraceCandidate> candidates;  // likewise
  FinishReason finish_reason = FinishReason::kNone;
  std::variant<std::monostate, int32_t, std::string> stop_reason;  // token id, or stop string
};

// A request's record. The client fills the first part. The engine writes the second part and hands it over with the finish event;
// afterwards it does not touch the record again.
struct Request {
  uint64_t id = 0;
  std::vector<int32_t> prompt_token_ids;
  SamplingParams params;
  std::vector<int32_t> negative_token_ids;  // of guidance: what its second sequence begins with; not empty where params.guided()
  int64_t num_samples = 1;                  // under beams: their width
  std::optional<BeamParams> beams;          // a beam search; at the finish event `samples` holds its hypotheses, best first
  int64_t priority = 0;
  bool trace = false;                        // record every token tried
  bool stream = false;                       // emit an event per step
  std::string cache_salt;                    // requests with different salts share no cached blocks
  std::shared_ptr<const Steering> steering;  // null: none
  SparseView view;                           // of prompt and output
  bool stepped = false;                      // runs only while step() is called
  std::shared_ptr<RequestHooks> hooks;
  // Constraints on the output: one for each sample, or one for all beams; empty: none. The engine takes them.
  std::vector<std::unique_ptr<TokenConstraint>> constraints;
  std::optional<SpeculationConfig> speculation;
  bool drafts_forced = false;  // speculation has a ForcedDrafter
  // Outputs by sample that are known already, or their beginnings: they are drafted as far as they agree. Empty: none.
  std::vector<std::vector<int32_t>> recorded;
  bool checks_recorded = false;         // a sample ends, by kAbort, with its first token that is not the record's, or behind its end
  std::shared_ptr<LabSequence> source;  // a sequence that begins like the prompt, whose cache is shared; or null

  std::vector<SampleOutput> samples;
  std::vector<TokenLogprobs> prompt_logprobs;  // entry i: prompt token i + 1
  std::optional<Error> error;
  int64_t num_preemptions = 0;
  int64_t num_cached_tokens = 0;
  double arrival_time_s = 0;
  double first_scheduled_time_s = 0;
  double first_token_time_s = 0;
  double finish_time_s = 0;
  double detokenize_time_s = 0;  // of the engine thread, in making text of the outputs' tokens
  double constraint_time_s = 0;  // in the masks and forced tokens of the outputs, whichever thread computed them
};

struct OutputEvent {
  std::shared_ptr<Request> request;
  bool finished = false;  // the request has ended; else the event is about one sample
  int64_t sample_index = 0;
  std::vector<int32_t> token_ids;
  std::string text;
  std::vector<TokenLogprobs> logprobs;  // of token_ids, if the request wants them
  FinishReason finish_reason = FinishReason::kNone;
  std::variant<std::monostate, int32_t, std::string> stop_reason;  // with finish_reason
  // Values of the record, which nobody else may read before the finish event.
  std::vector<TokenLogprobs> prompt_logprobs;  // with the request's first tokens, if it wants them
  int64_t num_cached_tokens = 0;
  int64_t num_draft_tokens = 0;  // of the sample so far
  int64_t num_accepted_tokens = 0;
  double first_scheduled_time_s = 0;
  double first_token_time_s = 0;
};

// A thread-safe queue of events from the engine thread to one client.
class OutputChannel {
 public:
  // Adds events, in order, and wakes those that wait once.
  void Push(std::vector<OutputEvent> events);
  // Waits up to timeout_s until there is an event.
  void Wait(double timeout_s);
  // All events that have come, in order.
  std::vector<OutputEvent> TakeAll();

 private:
  std::mutex mutex_;
  std::condition_variable ready_;
  std::deque<OutputEvent> events_;
};

}  // namespace llmi

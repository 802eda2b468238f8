// The engine thread's own records of requests under way, and of the step that it computes for them.
#pragma once

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "core/token_bits.h"
#include "engine/constraints/sample_constraint.h"
#include "engine/detokenizer.h"
#include "engine/drafting/draft_record.h"
#include "engine/drafting/draft_walk.h"
#include "engine/request.h"
#include "engine/rows/plan.h"
#include "model/decoder.h"
#include "kernels/draws/draw.h"
#include "sampling/law.h"
#include "scheduler/scheduler.h"
#include "speculative/verify.h"

namespace llmi {

class BeamGroup;
struct Running;

// The sequence that a guided sample is led away from: the negative prompt, then the sample's own output. It runs with the sample
// (ScheduledSequence::companion).
struct Companion {
  std::vector<int32_t> tokens;
  ScheduledSequence scheduled;
};

// One continuation: its tokens, cache and text.
struct Sample {
  Sample(std::shared_ptr<const TokenBytes> token_bytes, const SamplingParams& params)
      : detokenizer(std::move(token_bytes), params.skip_special_tokens, StopsOf(params), params.include_stop_str_in_output) {
    scheduled.owner = this;
  }

  Running* running = nullptr;
  int64_t index = 0;
  int64_t rank = 0;             // among the running beams of its search; else its index
  std::vector<int32_t> tokens;  // prompt and output
  ScheduledSequence scheduled;
  std::unique_ptr<Companion> companion;  // null without guidance
  Detokenizer detokenizer;
  DraftWalk walk;                                // over the draft of the step under way
  DraftRecord drafting;                          // what drafting keeps between steps
  SamplerState sampler;                          // of mirostat and adaptive_p, after `tokens`
  std::unique_ptr<SampleConstraint> constraint;  // null without one
  double emit_time_s = 0;                        // of the tokens of this step
  bool started = false;  // the scheduler knows it and its cache exists; true from the beginning for the first sample
  bool finished = false;
  struct {
    size_t num_tokens = 0;
    bool finish = false;
  } streamed;  // of its output

  const Request& request() const;
  SampleOutput& output() const;
  // Adds a companion with an empty cache that is not registered. Call it when `scheduled` is filled in.
  void AddCompanion(const std::vector<int32_t>& negative_token_ids);
  // The next token is this one.
  void Append(int32_t token);
  // Frees its cache, and its companion's. Freeing an empty one is harmless.
  void FreeCache(KvCache& cache);
  // Drops reserved blocks of both past their tokens.
  void TrimCache(KvCache& cache);
  // Makes num_new slots after its tokens, and num_drafted for a draft, writable in both, from free pages alone; or in neither, and returns
  // false.
  bool TryReserveFree(KvCache& cache, int64_t num_new, int64_t num_drafted);
  int64_t num_sequences() const { return companion == nullptr ? 1 : 2; }
  // Takes over the leader's companion, as it is before its first draw. Without guidance it does nothing.
  void ForkCompanion(KvCache& cache, const Sample& leader);
  // Whether its drafts are accepted and rejected. Then draft lengths influence the tokens, so they depend on this sequence alone.
  bool judges_drafts() const;
  HookContext hook_context() const;
  // What the law of the next token depends on, the mask of the walk's row among it. Throws what failed in the constraint.
  TokenHistory history() const;
  // Noise of the token at `position`. round: of verification, 0 for plain draws.
  NoiseKey noise_key(int64_t position, uint32_t round = 0) const { return {request().params.seed, position, rank, 0, round}; }
  // The same for the next token.
  NoiseKey next_noise_key(uint32_t round = 0) const { return noise_key(static_cast<int64_t>(tokens.size()), round); }
};

struct Running {
  std::shared_ptr<Request> request;
  std::shared_ptr<OutputChannel> channel;
  std::vector<std::unique_ptr<Sample>> samples;
  int64_t num_finished = 0;
  std::shared_ptr<BeamGroup> beams;  // the search that the samples run, or null
  std::vector<uint32_t> allowed;     // bits of allowed_token_ids (core/token_bits.h); empty: all

  int64_t prompt_len() const { return static_cast<int64_t>(request->prompt_token_ids.size()); }
  SampleOutput& output(const Sample& sample) { return request->samples[static_cast<size_t>(sample.index)]; }
};

inline const Request& Sample::request() const { return *running->request; }

inline SampleOutput& Sample::output() const { return running->output(*this); }

inline bool Sample::judges_drafts() const {
  return request().speculation && request().speculation->verification != VerificationKind::kCoupled;
}

inline TokenHistory Sample::history() const {
  return {tokens, running->prompt_len(), rank, sampler,
          constraint == nullptr ? std::span<const uint32_t>() : constraint->Allowed(walk.node())};
}

inline void Sample::AddCompanion(const std::vector<int32_t>& negative_token_ids) {
  companion = std::make_unique<Companion>();
  companion->tokens = negative_token_ids;
  companion->scheduled.owner = this;
  companion->scheduled.num_tokens = static_cast<int64_t>(companion->tokens.size());
  companion->scheduled.token_ids = &companion->tokens;
  companion->scheduled.cache_salt = scheduled.cache_salt;
  companion->scheduled.kv.view = scheduled.kv.view;
  scheduled.companion = &companion->scheduled;
}

inline void Sample::Append(int32_t token) {
  tokens.push_back(token);
  scheduled.num_tokens = static_cast<int64_t>(tokens.size());
  --scheduled.max_new_tokens;
  if (companion == nullptr) return;
  companion->tokens.push_back(token);
  companion->scheduled.num_tokens = static_cast<int64_t>(companion->tokens.size());
}

inline void Sample::FreeCache(KvCache& cache) {
  cache.Free(&scheduled.kv);
  if (companion != nullptr) cache.Free(&companion->scheduled.kv);
}

inline void Sample::TrimCache(KvCache& cache) {
  cache.Trim(&scheduled.kv);
  if (companion != nullptr) cache.Trim(&companion->scheduled.kv);
}

inline bool Sample::TryReserveFree(KvCache& cache, int64_t num_new, int64_t num_drafted) {
  const auto reserve = [&](KvSequence* kv) {
    return cache.TryReserve(kv, num_new + num_drafted, KvCache::Reclaim::kCacheOnly, num_drafted);
  };
  return reserve(&scheduled.kv) && (companion == nullptr || reserve(&companion->scheduled.kv));
}

inline void Sample::ForkCompanion(KvCache& cache, const Sample& leader) {
  if (companion == nullptr) return;
  cache.Fork(leader.companion->scheduled.kv, &companion->scheduled.kv);
  companion->scheduled.max_computed = companion->scheduled.kv.num_tokens;
}

inline HookContext Sample::hook_context() const { return {rank, index, &tokens, running->prompt_len(), &detokenizer.text()}; }

// A row of the batch whose logits are needed: it computes what follows `position` of a sample's tokens.
struct LogitsRow {
  Sample* sample;
  int64_t position;                 // of the row's token
  int32_t node;                     // of the sample's draft; kWalkRoot: a committed token's row
  bool draws;                       // true: the next token is drawn from it; false: it scores a prompt token
  int32_t after = -1;               // row of the previous step whose draw gives this row's token; -1: the host knows the token
  int32_t companion = -1;           // the companion's row, among all wanted rows of the step: they follow `rows`; -1: there is none
  const TokenMask* mask = nullptr;  // what the row's constraint allows, known before the head runs; null: all tokens, or the mask failed
  RowPlan plan = {};
};

// The verdict of a row that the device has not drawn: the host decides.
constexpr RowVerdict kNotDrawn = {kNoToken, -1};

// Rows of a chunk that follow each other, of which the device finds the likeliest tokens for beams.
struct PendingCandidates {
  size_t place = 0;  // of the first row
  size_t num_rows = 0;
  int64_t count = 0;  // tokens of each row
  size_t begin = 0;   // of the first row's tokens among those of the chunk
};

// The rows of a chunk that the device draws, and the ticket of that draw. No places: the device draws none, and there is no ticket.
struct PendingDraws {
  std::vector<size_t> places;
  DrawTicket ticket = 0;
  std::vector<PendingCandidates> candidates;
};

// A step between its forward and its tokens.
struct LaunchedStep {
  std::vector<ScheduledPiece> pieces;
  std::vector<LogitsRow> rows;
  std::vector<int64_t> piece_rows;  // by piece, the row of the forward where its own begin; empty: the step was launched ahead
  std::vector<int> tap_layers;
  std::vector<ScheduledSequence*> segments;  // whose rows each segment of the forward has; empty: the step was launched ahead
  int64_t num_rows = 0;                      // of the forward
  ForwardResult result;
  double start_s = 0;  // when its ops began, by the host's clock
  double forward_seconds = 0;
  int64_t num_ahead = 0;  // steps in a row, this one included, that were launched ahead without being scheduled
  // The scheduler's counts when the step was scheduled.
  int64_t num_running = 0;
  int64_t num_waiting = 0;
  std::optional<PendingDraws> draws;  // of its first chunk, if they are launched already
};

}  // namespace llmi

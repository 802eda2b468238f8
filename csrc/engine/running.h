// The engine thread's own records of requests under way, and of the step that it computes for them.
#pragma once

#include <memory>
#include <optional>
#include <utility>
#include <vector>

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

// One continuation: its tokens, cache and text.
struct Sample {
  Sample(std::shared_ptr<const TokenBytes> token_bytes, const SamplingParams& params)
      : detokenizer(std::move(token_bytes), params.skip_special_tokens, params.stop, params.include_stop_str_in_output) {
    scheduled.owner = this;
  }

  Running* running = nullptr;
  int64_t index = 0;
  int64_t rank = 0;             // among the running beams of its search; else its index
  std::vector<int32_t> tokens;  // prompt and output
  ScheduledSequence scheduled;
  Detokenizer detokenizer;
  DraftWalk walk;          // over the draft of the step under way
  DraftRecord drafting;    // what drafting keeps between steps
  SamplerState sampler;    // of mirostat and adaptive_p, after `tokens`
  double emit_time_s = 0;  // of the tokens of this step
  size_t num_streamed_tokens = 0;
  bool started = false;  // the scheduler knows it and its cache exists; true from the beginning for the first sample
  bool finished = false;
  bool finish_streamed = false;

  const Request& request() const;
  SampleOutput& output() const;
  // Whether its drafts are accepted and rejected. Then draft lengths influence the tokens, so they depend on this sequence alone.
  bool judges_drafts() const;
  HookContext hook_context() const;
  // What the law of the next token depends on.
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

  int64_t prompt_len() const { return static_cast<int64_t>(request->prompt_token_ids.size()); }
  SampleOutput& output(const Sample& sample) { return request->samples[static_cast<size_t>(sample.index)]; }
};

inline const Request& Sample::request() const { return *running->request; }

inline SampleOutput& Sample::output() const { return running->output(*this); }

inline bool Sample::judges_drafts() const {
  return request().speculation && request().speculation->verification != VerificationKind::kCoupled;
}

inline TokenHistory Sample::history() const { return {tokens, running->prompt_len(), rank, sampler}; }

inline HookContext Sample::hook_context() const { return {rank, index, &tokens, running->prompt_len(), &detokenizer.text()}; }

// A row of the batch whose logits are needed: it computes what follows `position` of a sample's tokens.
struct LogitsRow {
  Sample* sample;
  int64_t position;    // of the row's token
  int32_t node;        // of the sample's draft; kWalkRoot: a committed token's row
  bool draws;          // true: the next token is drawn from it; false: it scores a prompt token
  int32_t after = -1;  // row of the previous step whose draw gives this row's token; -1: the host knows the token
  RowPlan plan = {};
};

// The verdict of a row that the device has not drawn: the host decides.
constexpr RowVerdict kNotDrawn = {kNoToken, -1};

// The rows of a chunk that the device draws, and the ticket of that draw. No places: the device draws none, and there is no ticket.
struct PendingDraws {
  std::vector<size_t> places;
  DrawTicket ticket = 0;
};

// A step between its forward and its tokens.
struct LaunchedStep {
  std::vector<ScheduledPiece> pieces;
  std::vector<LogitsRow> rows;
  std::vector<int> tap_layers;
  int64_t num_rows = 0;  // of the forward
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

// The engine thread's own records of requests under way, and of the step that it computes for them.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/detokenizer.h"
#include "engine/request.h"
#include "engine/rows/plan.h"
#include "model/decoder.h"
#include "kernels/draws/draw.h"
#include "sampling/law.h"
#include "scheduler/scheduler.h"
#include "speculative/length.h"

namespace llmi {

// The node whose row the walk takes next: the root is the last committed token.
constexpr int32_t kWalkRoot = -1;
constexpr int32_t kWalkEnded = -2;
constexpr int32_t kFindChild = -3;  // the child that holds the drawn token, if there is one

struct Running;

// One continuation: its tokens, its cache, its text.
struct Sample {
  Sample(std::shared_ptr<const TokenBytes> token_bytes, const SamplingParams& params)
      : detokenizer(std::move(token_bytes), params.skip_special_tokens, params.stop, params.include_stop_str_in_output) {
    scheduled.owner = this;
  }

  Running* running = nullptr;
  int64_t index = 0;
  std::vector<int32_t> tokens;  // prompt and output
  ScheduledSequence scheduled;
  Detokenizer detokenizer;
  // Speculation: the draft of the step under way, the place of its walk, and what was learnt.
  Draft draft;
  std::optional<Draft> whole_draft;  // proposed for the last token, and waits for a step that has room for all of it
  int32_t walk = kWalkRoot;
  std::vector<float> judged_rows;                   // raw logits [1 + nodes, vocab_size], while a draft waits for its judge
  std::optional<RowVerdict> planned;                // what a judge has decided for the row at hand
  std::vector<float> draft_logprobs;                // the target's, by node, where the drafter wants them
  int64_t num_accepted = 0;                         // of this draft
  int32_t drawn_at = kWalkRoot;                     // node whose row the last token was drawn from
  std::map<int, std::vector<float>> hidden_states;  // of that row, {layer: [hidden_size]}, where the drafter wants them
  uint32_t round = 0;                               // of verification
  std::unique_ptr<DrafterState> drafter_state;
  int32_t confidence = 0;  // of this draft
  std::array<AcceptanceRecord, kNumConfidences> acceptance;
  double emit_time_s = 0;  // of the tokens of this step
  size_t num_streamed_tokens = 0;
  bool started = false;  // its cache exists and the scheduler knows it (the first sample from the beginning)
  bool finished = false;
  bool finish_streamed = false;

  const Request& request() const;
  SampleOutput& output() const;
  // Its drafts are accepted and rejected: lengths enter the result, so they follow from the sequence alone.
  bool judges_drafts() const;
  HookContext hook_context() const;
  // Noise of the next token; round: of verification, 0 for plain draws.
  NoiseKey noise_key(uint32_t verification_round = 0) const;
};

struct Running {
  std::shared_ptr<Request> request;
  std::shared_ptr<OutputChannel> channel;
  std::vector<std::unique_ptr<Sample>> samples;
  int64_t num_finished = 0;

  int64_t prompt_len() const { return static_cast<int64_t>(request->prompt_token_ids.size()); }
  SampleOutput& output(const Sample& sample) { return request->samples[static_cast<size_t>(sample.index)]; }
};

inline const Request& Sample::request() const { return *running->request; }

inline SampleOutput& Sample::output() const { return running->output(*this); }

inline bool Sample::judges_drafts() const {
  return request().speculation && request().speculation->verification != VerificationKind::kCoupled;
}

inline HookContext Sample::hook_context() const { return {index, index, &tokens, running->prompt_len(), &detokenizer.text()}; }

inline NoiseKey Sample::noise_key(uint32_t verification_round) const {
  return {request().params.seed, static_cast<int64_t>(tokens.size()), index, 0, verification_round};
}

// A row of the batch whose logits are wanted: after `position` of a sample's tokens.
struct LogitsRow {
  Sample* sample;
  int64_t position;    // of the row's token
  int32_t node;        // of the sample's draft; kWalkRoot: a committed token's row
  bool draws;          // the next token is drawn from it; else it scores a prompt token
  int32_t after = -1;  // row of the draw before that gives the row's token, where the host does not know it yet
  RowPlan plan = {};
};

// What was decided for a row; the host decides where this says kNotDrawn.
constexpr RowVerdict kNotDrawn = {kNoToken, -1};

// Rows of a chunk that are being drawn on the device, and the device's ticket, if there are any.
struct PendingDraws {
  std::vector<size_t> places;
  DrawTicket ticket = 0;
};

// A step that was given to the decoder, until its tokens are known.
struct LaunchedStep {
  std::vector<ScheduledPiece> pieces;
  std::vector<LogitsRow> rows;
  std::vector<int> tap_layers;
  int64_t num_rows = 0;  // of the forward
  ForwardResult result;
  double start_s = 0;  // when its ops began, as far as the host knows
  double forward_seconds = 0;
  int64_t num_ahead = 0;  // steps since the last that was scheduled
  // The counts when it was scheduled.
  int64_t num_running = 0;
  int64_t num_waiting = 0;
  std::optional<PendingDraws> draws;  // of its first chunk, where they were launched already
};

}  // namespace llmi

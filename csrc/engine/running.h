// The engine thread's own records of requests under way.
#pragma once

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "engine/clock.h"
#include "engine/engine.h"
#include "sampling/law.h"
#include "speculative/length.h"

namespace llmi {

// The node whose row the walk takes next: the root is the last committed token.
constexpr int32_t kWalkRoot = -1;
constexpr int32_t kWalkEnded = -2;
constexpr int32_t kFindChild = -3;  // the child that holds the drawn token, if there is one

// One continuation: its tokens, its cache, its text.
struct Engine::Sample {
  Sample(std::shared_ptr<const TokenBytes> token_bytes, const SamplingParams& params)
      : detokenizer(std::move(token_bytes), params.skip_special_tokens, params.stop, params.include_stop_str_in_output) {
    scheduled.owner = this;
  }

  Running* running = nullptr;
  int64_t index = 0;
  std::vector<int32_t> tokens;  // prompt and output
  ScheduledSequence scheduled;
  Detokenizer detokenizer;
  // Speculation: the draft of the step under way, where its walk stands, and what was learnt.
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

  // Its drafts are accepted and rejected: lengths enter the result, so they follow from the sequence alone.
  bool judges_drafts() const;
  HookContext hook_context() const;
};

struct Engine::Running {
  std::shared_ptr<Request> request;
  std::shared_ptr<OutputChannel> channel;
  std::vector<std::unique_ptr<Sample>> samples;
  int64_t num_finished = 0;

  int64_t prompt_len() const { return static_cast<int64_t>(request->prompt_token_ids.size()); }
  SampleOutput& output(const Sample& sample) { return request->samples[static_cast<size_t>(sample.index)]; }
};

inline bool Engine::Sample::judges_drafts() const {
  return running->request->speculation && running->request->speculation->verification != VerificationKind::kCoupled;
}

inline HookContext Engine::Sample::hook_context() const { return {index, index, &tokens, running->prompt_len(), &detokenizer.text()}; }

// A row of the batch whose logits are wanted: after `position` of a sample's tokens.
struct Engine::LogitsRow {
  Sample* sample;
  int64_t position;    // of the row's token
  int32_t node;        // of the sample's draft; kWalkRoot: a committed token's row
  bool draws;          // the next token is drawn from it; else it scores a prompt token
  int32_t after = -1;  // row of the draw before that gives the row's token, where the host does not know it yet
};

// A step that was given to the decoder, until its tokens are known.
struct Engine::LaunchedStep {
  std::vector<ScheduledPiece> pieces;
  std::vector<LogitsRow> rows;
  std::vector<int> tap_layers;
  int64_t num_rows = 0;  // of the forward
  ForwardResult result;
  double start_s = 0;  // when its ops began, as far as the host knows
  double forward_seconds = 0;
  int64_t num_ahead = 0;  // steps since the last that was scheduled
  // Ran and waited then.
  int64_t num_running = 0;
  int64_t num_waiting = 0;
  std::optional<PendingDraws> draws;  // of its first chunk, where they were launched already
};

}  // namespace llmi

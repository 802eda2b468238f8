// Which tokens a drafter proposes after a row of logits: those that the target itself would draw if it had this row.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/ops/context.h"
#include "sampling/params.h"
#include "sampling/state.h"
#include "speculative/seat.h"

namespace llmi {

// Where the tokens stand.
struct DraftChoice {
  // Behind the text of the seat.
  explicit DraftChoice(const Seat& seat)
      : params(*seat.sampling.params),
        prompt_len(seat.text.prompt_len),
        rank(seat.sampling.rank),
        sample_index(seat.sequence.sample_index),
        round(seat.sampling.round),
        wants_laws(seat.wants.laws),
        sampler(seat.sampling.state),
        token_ids(seat.text.token_ids.begin(), seat.text.token_ids.end()) {}

  const SamplingParams& params;
  int64_t prompt_len;
  int64_t rank;          // TokenHistory::sample_index
  int64_t sample_index;  // of the noise
  uint32_t round;        // of verification
  bool wants_laws;
  SamplerState sampler;
  std::vector<int32_t> token_ids;  // prompt, output, and the draft so far
  bool wants_probabilities = false;
};

struct DraftChoices {
  std::vector<int32_t> token_ids;
  std::vector<float> probabilities;      // of each, by the drafter's law; empty: not wanted
  std::vector<std::vector<float>> laws;  // [vocab_size] of each, given those before it; empty: not wanted
};

// At most `count` siblings, fewer where fewer tokens may come. logits: of all tokens, or of those in `listed` (ascending), others cannot be
// chosen. Without laws they are the foremost by the target's own noise (the likeliest at temperature 0), in order; with laws they are drawn
// by noise of the round, without replacement.
DraftChoices ChooseTokens(const KernelContext& host, const DraftChoice& choice, std::span<const int32_t> listed,
                          std::span<const float> logits, int64_t vocab_size, int64_t count);

}  // namespace llmi

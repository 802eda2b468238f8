// The processed distribution of a row of logits, called its "law" throughout the code. One function computes it; sampling, verification and
// log-probabilities all call that function.
//
// Order: masks (the constraint, allowed ids, bad words, stop ids before min_tokens, repeated n-grams), bias, penalties (repetition,
// frequency, presence, DRY); the user's processors, then masks again; then the filters in the order of sampling/steps.h, or of
// sampler_order. Tokens rank by logit, descending, then by id, ascending. Masses are integers, and other sums have one order
// (filters/row.h), so a law has the same bits on every machine.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "kernels/draws/exponential_race.h"
#include "kernels/ops/context.h"
#include "sampling/params.h"
#include "sampling/state.h"

namespace llmi {

// What a draw depends on besides its row and its parameters.
struct TokenHistory {
  std::span<const int32_t> token_ids;  // before the one to be drawn: prompt, then output
  int64_t prompt_len = 0;
  int64_t sample_index = 0;                // keys the coin of xtc_probability, with the seed and the position
  SamplerState state = {};                 // of the sequence
  std::span<const uint32_t> allowed = {};  // the constraint's mask, a bit for each token (constraint/token_constraint.h); empty: all
};

// Called between penalties and temperature with the row [vocab_size], which it may change.
using LogitsHook = std::function<void(float* logits)>;

// The stages of a row's processing, for traces that show why a token was drawn.
enum class LawStage : uint8_t {
  kGiven,      // before all: the model's logits, or what guidance or contrast made of them
  kMasked,     // the constraint, allowed ids, bad words, minimum length, repeated n-grams, bias
  kPenalised,  // repetition, frequency, presence, DRY
  kProcessed,  // the user's processors, and masks again
  kTempered,   // and by the filters that run before temperature
};
constexpr size_t kNumLawStages = 5;
// The rows [vocab_size] after each stage; empty for one that did not run.
using LawStages = std::array<std::vector<float>, kNumLawStages>;
// Called after each stage with the row [vocab_size].
using LawObserver = std::function<void(LawStage stage, const float* logits)>;

// The coin of xtc_probability at the history's end: whether top choices are excluded there.
bool XtcCoin(const SamplingParams& params, const TokenHistory& history);

// The first half: applies masks, bias and penalties in place. Throws Error(kNonFiniteLogits) if the model's logits have no finite maximum.
void PenaliseLogits(const KernelContext& context, const SamplingParams& params, const TokenHistory& history, float* logits,
                    int64_t vocab_size, const LawObserver& observer = nullptr);

// Bans again what masks ban (the constraint, allowed ids, bad words, stop ids before min_tokens, repeated n-grams, biases of -inf), after
// user code.
void MaskAgain(const SamplingParams& params, const TokenHistory& history, float* logits, int64_t vocab_size);

// The second half: applies the filters in place, after the hooks. Returns the row as it was before adaptive_p, for NextState (state.h);
// empty without adaptive_p. Throws Error(kNonFiniteLogits) if the logits have no finite maximum then.
std::vector<float> FilterLogits(const KernelContext& context, const SamplingParams& params, const TokenHistory& history, float* logits,
                                int64_t vocab_size, const LawObserver& observer = nullptr);

// Both halves, with the hook between them, and masks again after the hook. Turns raw logits into the law, in place: with temperature > 0
// it is softmax(law), -inf where cut; with temperature 0, law[i] is the masked and penalised logit, and all mass is on ArgMax. Returns what
// FilterLogits returns. Throws Error(kNonFiniteLogits) if no finite maximum is left.
std::vector<float> ProcessLogits(const KernelContext& context, const SamplingParams& params, const TokenHistory& history,
                                 const LogitsHook& hook, float* logits, int64_t vocab_size, const LawObserver& observer = nullptr);

// Coordinates of the noise of one draw (docs/numerics.md): the token at `position` of sample `sample_index`.
struct NoiseKey {
  uint64_t seed = 0;
  int64_t position = 0;
  int64_t sample_index = 0;
  uint32_t purpose = 0;  // 0 target draw, 1 draft draw, 2 acceptance, 3 residual, 4 other coins; 5 and 6 are llmi.smc's, in Python
  uint32_t round = 0;    // verification round, for purposes 1 to 3
};

RaceNoise NoiseOf(const NoiseKey& key);

// The word of `token_id` under this key.
uint32_t NoiseWord(const NoiseKey& key, int64_t token_id);

// log E of `token_id`. The smaller it is, the earlier the token arrives in the race of Draw.
double LogExponential(const NoiseKey& key, int64_t token_id);

// Draws from softmax(law): returns the token with the least log(E) - law, where E = -log(1 - v) and v = (word + 0.5) 2^-32. This is the
// Gumbel-max method, in a form that is exact in the tail. Among equal scores the lowest id wins.
int32_t Draw(const KernelContext& context, const NoiseKey& key, const float* law, int64_t vocab_size);

// The token that plain decoding emits from a processed law: the likeliest at temperature 0, else that of Draw. position: the number of
// tokens before the drawn one; it selects the noise.
int32_t DrawToken(const KernelContext& context, const SamplingParams& params, int64_t position, int64_t sample_index,
                  std::span<const float> law);

// The `count` kept tokens with the least scores of Draw, the least first: a draw without replacement. key null: the likeliest tokens.
std::vector<int32_t> DrawSeveral(const NoiseKey* key, const float* law, int64_t vocab_size, int64_t count);

}  // namespace llmi

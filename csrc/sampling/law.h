// The processed distribution of a row, called its "law" throughout the code: one function computes it, which sampling, verification and
// log-probabilities call.
//
// Order: masks (allowed ids, bad words, stop ids before min_tokens), bias, penalties (repetition, frequency,
// presence); then what the user's processors do; then temperature, min-p, top-k, top-p. Ranking is by logit
// descending, id ascending; top-p counts integer masses (kernels/ops/vocab.h), so its set is the same everywhere.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "kernels/draws/exponential_race.h"
#include "kernels/ops/context.h"
#include "sampling/params.h"

namespace llmi {

// The tokens before the one to be drawn: prompt, then output.
struct TokenHistory {
  std::span<const int32_t> token_ids;
  int64_t prompt_len = 0;
};

// Called between penalties and temperature with the row [vocab_size], which it may change.
using LogitsHook = std::function<void(float* logits)>;

// What a row went through, for those who ask why a token was drawn. Called after each stage with the row [vocab_size].
enum class LawStage : uint8_t {
  kMasked,     // allowed ids, bad words, minimum length, bias
  kPenalised,  // repetition, frequency, presence
  kProcessed,  // the user's processors
  kTempered,
};
constexpr size_t kNumLawStages = 4;
using LawObserver = std::function<void(LawStage stage, const float* logits)>;

// The first half: masks, bias and penalties, in place. Throws Error(kNonFiniteLogits) if the model's logits have no finite
// maximum.
void PenaliseLogits(const KernelContext& context, const SamplingParams& params, const TokenHistory& history, float* logits,
                    int64_t vocab_size, const LawObserver& observer = nullptr);

// The second half: temperature and filters, in place, of what hooks left. Throws Error(kNonFiniteLogits) if that has no finite
// maximum.
void FilterLogits(const KernelContext& context, const SamplingParams& params, const TokenHistory& history, float* logits,
                  int64_t vocab_size, const LawObserver& observer = nullptr);

// Both halves, with the hook between them. Turns raw logits into the law, in place: with temperature > 0, law[i] = logit / temperature
// where kept and -inf where cut, and the law is softmax(law); with temperature 0, law[i] is the masked and penalised logit, and all mass is
// on ArgMax. Throws Error(kNonFiniteLogits) if no finite maximum is left.
void ProcessLogits(const KernelContext& context, const SamplingParams& params, const TokenHistory& history, const LogitsHook& hook,
                   float* logits, int64_t vocab_size, const LawObserver& observer = nullptr);

// Coordinates of the noise of one draw (docs/numerics.md): the token at `position` of sample `sample_index`.
struct NoiseKey {
  uint64_t seed = 0;
  int64_t position = 0;
  int64_t sample_index = 0;
  uint32_t purpose = 0;  // 0 target draw, 1 draft draw, 2 acceptance, 3 residual, 4 other coins
  uint32_t round = 0;    // verification round, for purposes 1 to 3
};

RaceNoise NoiseOf(const NoiseKey& key);

// The word of `token_id` under this key.
uint32_t NoiseWord(const NoiseKey& key, int64_t token_id);

// log E of `token_id`: the smaller, the sooner it wins the race of Draw.
double LogExponential(const NoiseKey& key, int64_t token_id);

// Draws from softmax(law): the token with the least log(E) - law, E = -log(1 - v), v = (word + 0.5) 2^-32. This is
// the Gumbel maximum; exact in the tail. Ties go to the lowest id.
int32_t Draw(const KernelContext& context, const NoiseKey& key, const float* law, int64_t vocab_size);

// The token that plain decoding emits from a processed law: the likeliest at temperature 0, else Draw with the noise of
// `position`, the number of tokens before it.
int32_t DrawToken(const KernelContext& context, const SamplingParams& params, int64_t position, int64_t sample_index,
                  std::span<const float> law);

// The `count` kept tokens that Draw would prefer, best first: a draw without replacement. key null: by rank.
std::vector<int32_t> DrawSeveral(const NoiseKey* key, const float* law, int64_t vocab_size, int64_t count);

}  // namespace llmi

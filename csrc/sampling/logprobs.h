// Log-probabilities of one position: the sampled (or given) token and the likeliest ones.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/ops/context.h"

namespace llmi {

// Entry 0 is the sampled or given token; then come the top n by raw logit (ties: lowest id), best first, and the wanted ids that are not
// among these.
struct TokenLogprobs {
  std::vector<int32_t> token_ids;
  std::vector<float> logprobs;            // raw: log softmax of the model's logits
  std::vector<float> processed_logprobs;  // log-probabilities under the law that was drawn from; -inf where it cuts
  std::vector<int32_t> ranks;             // 1 = largest raw logit
};

// The tokens of a position's log-probabilities, besides its own.
struct WantedLogprobs {
  int64_t num_top = 0;                      // the likeliest tokens; 0 or less: none
  std::span<const int32_t> token_ids = {};  // more tokens, in any order
};

// Turns a row of logits into log-probabilities, in place: each less LogSumExp. Returns that. Throws Error(kNonFiniteLogits) if the row
// holds NaN or +inf, or -inf alone.
float ToLogprobs(const KernelContext& context, float* row, int64_t vocab_size);

// raw [vocab_size]: the model's logits. law [vocab_size]: the result of ProcessLogits. greedy: all of the law's mass is on `token`.
// Each token is returned once.
TokenLogprobs ComputeLogprobs(const KernelContext& context, const float* raw, const float* law, bool greedy, int64_t vocab_size,
                              int32_t token, const WantedLogprobs& wanted);

}  // namespace llmi

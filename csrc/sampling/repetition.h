// Repetitions in a history: n-grams that must not come again, and DRY, which makes a token the less likely the longer a repetition it
// would continue. Both are functions of the history alone, so forks, rollbacks and verified paths need nothing more.
//
// DRY ("don't repeat yourself", p-e-w, text-generation-webui pull request 5677; rules of llama.cpp): let h be the last dry_penalty_last_n
// tokens, and r the number of tokens after the latest breaker in h, or the length of h. A token t gets the length n, the longest n <= r
// such that the last n tokens of h stand somewhere before its end, followed by t. If n >= dry_allowed_length,
//     logit -= float32(dry_multiplier * dry_base^min(n - dry_allowed_length, cap)),   cap = floor(ln(FLT_MAX) / ln(dry_base)).
// A token that is a breaker by itself is left as it is. A breaker of several tokens ends where its last token does.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sampling/params.h"

namespace llmi {

// Appends each token, perhaps more than once, that would complete an n-gram which the history, prompt included, holds already.
void AppendRepeatedNgrams(int64_t size, std::span<const int32_t> token_ids, std::vector<int32_t>* banned);

struct Repeat {
  int32_t id;
  int64_t length;  // of the repetition that the token would continue
  bool operator==(const Repeat&) const = default;
};

// The tokens that DRY changes, ascending by id, each with its longest repetition of dry_allowed_length or more.
std::vector<Repeat> FindRepeats(const SamplingParams& params, std::span<const int32_t> token_ids);

// Subtracts DRY's penalties in place. logits [vocab_size].
void ApplyDry(const SamplingParams& params, std::span<const int32_t> token_ids, float* logits);

}  // namespace llmi

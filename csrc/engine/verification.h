// The law, the noise and the verdict of one row under acceptance and rejection.
//
// Noise (docs/numerics.md): drafts are drawn with purpose 1 and accepted with purpose 2. After a rejection the token is drawn with purpose
// 3 from the rest of the law. Other uniform numbers have purpose 4. The key of each holds the round. A row without drafts after it draws as
// plain decoding does.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/ops/context.h"
#include "sampling/edits.h"
#include "sampling/law.h"
#include "sampling/params.h"
#include "speculative/verify.h"

namespace llmi {

inline double UniformOf(uint32_t word) { return (static_cast<double>(word) + 0.5) * 0x1p-32; }

// The uniform number that decides about a drafted token. key (here and below): of the row, with the round and purpose 0.
double AcceptanceUniform(NoiseKey key, int32_t token_id);

// Draws a token from probs [vocab_size], which need not sum to 1.
int32_t DrawVerified(const KernelContext& context, const SamplingParams& params, NoiseKey key, std::span<const double> probs,
                     bool after_rejection);

// The probabilities [vocab_size] of a processed law (sampling/law.h).
std::vector<double> NormalisedLaw(const KernelContext& context, const SamplingParams& params, std::span<const float> law);

// The verdict about the row of `node` (-1: the root). law [vocab_size]: the row's processed law.
RowVerdict VerifyLaw(const KernelContext& context, const SamplingParams& params, const NoiseKey& key, std::span<const float> law,
                     const Draft& draft, int32_t node, const AcceptanceRule& rule);

// Adds to the last row of `draws` what a device needs to give the same verdict by the default rule.
void AddVerification(const NoiseKey& key, const Draft& draft, std::span<const int32_t> children, DrawList* draws);

}  // namespace llmi

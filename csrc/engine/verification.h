// One row under acceptance and rejection: its law, its coins, its verdict.
//
// Noise (docs/numerics.md): drafts are drawn with purpose 1 and accepted with 2; what a rejection leaves is drawn with 3. Each is keyed by
// the round. Other coins have purpose 4. A row without drafts behind it draws as plain decoding does.
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

// The coin for a drafted token. key: of the row, with the round and purpose 0, here and below.
double AcceptanceUniform(NoiseKey key, int32_t token_id);

// A token from probs [vocab_size], which need not sum to 1.
int32_t DrawVerified(const KernelContext& context, const SamplingParams& params, NoiseKey key, std::span<const double> probs,
                     bool after_rejection);

// A processed law (sampling/law.h) as probabilities [vocab_size].
std::vector<double> NormalisedLaw(const KernelContext& context, const SamplingParams& params, std::span<const float> law);

// What follows the row of `node` (-1: the root), whose processed law this is.
RowVerdict VerifyLaw(const KernelContext& context, const SamplingParams& params, const NoiseKey& key, std::span<const float> law,
                     const Draft& draft, int32_t node, const AcceptanceRule& rule);

// Gives the row that was added last all that a device needs for the same verdict, by the default rule.
void AddVerification(const NoiseKey& key, const Draft& draft, std::span<const int32_t> children, DrawList* draws);

}  // namespace llmi

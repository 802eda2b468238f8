// verify: accepts or rejects drafted tokens, one after the other, by the law of their row (rule: speculative/verify.h). Host and device
// share these functions, so both judge a row with the same bits.
// A row's law is its probabilities after processing, in float64 (docs/decisions/0003): the weights exp(law - peak), 0 where cut, divided by
// their sum. A sum runs over 512 lanes, lane = id mod 512, each in the order of its ids; the lanes are folded by halves: 256, 128, ..., 1.
#pragma once

#include <stdint.h>

#include "core/scalar_math.h"

namespace llmi {

constexpr int kLawLanes = 512;

// A drafted token that may follow a row.
struct DraftedToken {
  int32_t id;
  int64_t law;     // index in the batch's laws of the one it was drawn from; -1: a point mass
  double uniform;  // in (0, 1): the noise that decides its acceptance
};

LLMI_HD static inline double LawWeight(float law, float peak) {
  return law > -__builtin_inff() ? ExpF64(static_cast<double>(law) - static_cast<double>(peak)) : 0.0;
}

// The divisor that turns weights with this sum into probabilities. The sum is 0 if a rejection between equal laws leaves nothing.
LLMI_HD static inline double LawDivisor(double sum) { return sum > 0 ? sum : 1.0; }

// Probability of token `id` under the law from which `drafted` was drawn; law null: a point mass on `drafted`.
LLMI_HD static inline double DraftProbability(int64_t id, int64_t drafted, const float* law) {
  return law == nullptr ? (id == drafted ? 1.0 : 0.0) : static_cast<double>(law[id]);
}

// Acceptance probability by the exact rule; target, drafted: the token's probabilities under the target and under the drafter's law.
LLMI_HD static inline double ExactAcceptance(double target, double drafted) { return target >= drafted ? 1.0 : target / drafted; }

// Weight of a token in the residual after a rejection, not normalised.
LLMI_HD static inline double ResidualWeight(double target, double drafted) { return target > drafted ? target - drafted : 0.0; }

// The log-weight with which a race (kernels/draws/exponential_race.h) draws a token with this probability.
LLMI_HD static inline float LogLaw(double probability) {
  return probability > 0 ? static_cast<float>(LogF64(probability)) : -__builtin_inff();
}

}  // namespace llmi

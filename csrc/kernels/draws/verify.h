// verify: drafted tokens are accepted or rejected one after the other, where their row's law lies (speculative/verify.h says by which
// rule). What is here the host and a device share, so that both judge a row to the same bits.
//
// The law is in float64 (docs/decisions/0007): weights exp(law - peak), 0 where cut, over their sum. A sum runs over 512 lanes, lane =
// id mod 512, each in the order of its ids; the lanes are folded by halves: 256, 128, ..., 1.
#pragma once

#include <stdint.h>

#include "core/scalar_math.h"

namespace llmi {

constexpr int kLawLanes = 512;

// A drafted token that may follow a row.
struct DraftedToken {
  int32_t id;
  int64_t law;     // of the batch's laws, from which it was drawn; -1: a point mass
  double uniform;  // in (0, 1): the coin of its acceptance
};

LLMI_HD static inline double LawWeight(float law, float peak) {
  return law > -__builtin_inff() ? ExpF64(static_cast<double>(law) - static_cast<double>(peak)) : 0.0;
}

// What a token's probability is divided by when its law's weights have this sum: what is left of equal laws may be nothing.
LLMI_HD static inline double LawDivisor(double sum) { return sum > 0 ? sum : 1.0; }

// Of token `id` under the law from which `drafted` was drawn; null: a point mass.
LLMI_HD static inline double DraftProbability(int64_t id, int64_t drafted, const float* law) {
  return law == nullptr ? (id == drafted ? 1.0 : 0.0) : static_cast<double>(law[id]);
}

// The exact rule: of a token with these probabilities under the target and under what it was drawn from.
LLMI_HD static inline double ExactAcceptance(double target, double drafted) { return target >= drafted ? 1.0 : target / drafted; }

// What a rejected token's law leaves of the target's, not normalised.
LLMI_HD static inline double ResidualWeight(double target, double drafted) { return target > drafted ? target - drafted : 0.0; }

// The law of a race (kernels/draws/race.h) that draws with these probabilities.
LLMI_HD static inline float LogLaw(double probability) {
  return probability > 0 ? static_cast<float>(LogF64(probability)) : -__builtin_inff();
}

}  // namespace llmi

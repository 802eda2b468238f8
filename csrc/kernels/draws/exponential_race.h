// The exponential race of sampling (sampling/law.h): which tokens may still win.
//
// Token id's word w is Philox's (counter id / 4, position, sample, purpose; word id mod 4). Its time is at least
// v = w / 2^32, so a token with log-weight law[id] beats the score `limit` only if v < exp(limit + law[id]).
// race_candidates finds the ids with  floor(w / 256) 2^-24 < 1.001 exp32(limit + law[id]):  all that can win, and few others.
#pragma once

#include <stdint.h>

#include "core/philox.h"
#include "core/scalar_math.h"

namespace llmi {

struct RaceNoise {
  uint64_t seed;
  uint32_t position;
  uint32_t sample_index;
  uint32_t purpose;  // and round
};

struct RaceArgs {
  RaceNoise noise;
  const float* law;  // [vocab_size]; -inf where cut
  int64_t first_id;  // a multiple of 4
  int64_t size;      // ids [first_id, first_id + size)
  float limit;
};

// The noise words of ids 4 quad to 4 quad + 3.
LLMI_HD static inline PhiloxWords RaceWords(const RaceNoise& noise, int64_t quad) {
  return Philox4x32({{static_cast<uint32_t>(quad), noise.position, noise.sample_index, noise.purpose}}, noise.seed);
}

// Whether a token may beat `limit`.
LLMI_HD static inline bool MayWinRace(uint32_t word, float limit, float law) {
  return static_cast<float>(word >> 8) * 0x1p-24f < ExpF32(limit + law) * 1.001f;
}

// log E - law, E = -log(1 - v), v = (word + 0.5) 2^-32 and at most 1 - 2^-24, so that log(1 - v) is finite. The least score wins.
LLMI_HD static inline double RaceScore(uint32_t word, float law) {
  const double drawn = (static_cast<double>(word) + 0.5) * 0x1p-32;
  const double v = drawn < 1.0 - 0x1p-24 ? drawn : 1.0 - 0x1p-24;
  return LogF64(-Log1pF64(-v)) - static_cast<double>(law);
}

}  // namespace llmi

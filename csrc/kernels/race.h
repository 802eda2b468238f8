// The exponential race of sampling (sampling/law.h): which tokens may still win.
//
// Token id's word w is Philox's (counter id / 4, position, sample, purpose; word id mod 4). Its time is at least
// v = w / 2^32, so a token with log-weight law[id] beats the score `limit` only if v < exp(limit + law[id]).
// race_candidates finds the ids with  floor(w / 256) 2^-24 < 1.001 exp32(limit + law[id]):  all that can win, and few more.
#pragma once

#include <stdint.h>

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

}  // namespace llmi

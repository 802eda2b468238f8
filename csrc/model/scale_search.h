// Scales of blocks of values, by the least weighted squared error that a search finds: some factors of a block's own scale, each fitted to
// the codes that it gives, and the best one fitted again. Loops in one order: sums of a block add halves to halves.
#pragma once

#include <cstdint>
#include <span>

namespace llmi {

struct ScaleSearch {
  static constexpr int64_t kMostSize = 32;

  int64_t num_blocks;
  int64_t size;          // of a block: 16 or 32
  const float* values;   // [num_blocks, size]
  const float* weights;  // [num_weights, size]: block b has row b modulo num_weights
  int64_t num_weights;
  int32_t least, most;            // codes, which stand for scale * code + low
  std::span<const float> levels;  // ascending; not empty: what codes stand for is scale * level, of the nearest one
  bool has_minimum;               // else low is 0
  bool in_halves;                 // scales and minima are judged as fp16
  bool below_zero;                // minima are at most 0
  float* scales;                  // [num_blocks]
  float* lows;                    // [num_blocks]
};
void SearchScales(const ScaleSearch& search);

}  // namespace llmi

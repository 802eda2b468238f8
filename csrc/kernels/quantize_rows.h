// quantize_rows: fp32 activations to int8, per token in blocks of 32 columns, which share a scale, or, where out.fine, have one
// for each 16.
//
//   scale = max|x| / 127 of the columns that share it;  code = round_to_even(x * (127 / max|x|)), 0 where max|x| < 2^-100
//
// x            [num_rows, num_cols] fp32, num_cols a multiple of 32
// out.codes    [num_rows, num_cols] int8 in [-127, 127]
// out.scales   [num_rows, num_cols / 32] fp32; fine: [num_rows, num_cols / 16]
// out.sums     [num_rows, num_cols / 32] fp32: scale times the sum of the block's codes; fine: of the first half, plus of the second
// out.half_sums [num_rows, num_cols / 16] int32: sums of 16 codes
// A NaN or infinity makes its block's scale NaN, so it is never lost. x and out may not overlap.
// Source: absmax quantisation per group, as in Dettmers et al., LLM.int8(), 2022.
#pragma once

#include <stdint.h>

namespace llmi {

struct QuantizedRows {
  int64_t num_cols;
  int8_t* codes;
  float* scales;
  float* sums;
  int32_t* half_sums;
  bool fine = false;
};

}  // namespace llmi

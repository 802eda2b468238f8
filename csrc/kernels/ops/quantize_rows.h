// quantize_rows: converts fp32 activations to codes of one or two bytes, each token separately in blocks of 32 columns. The columns of a
// block share a scale; if out.fine, each half of a block has its own.
//
//   y = x * (127 / max|x|), with the maximum over the columns that share a scale; 0 if max|x| < 2^-100
//   one byte:   code = round_to_even(y);  scale = max|x| / 127
//   two bytes (out.low not null; never fine):  high = round_to_even(y), low = round_to_even(256 (y - high)), at least -127 and at most
//     127;  code = 256 high + low;  scale = max|x| / 127 / 256
//
// x            [num_rows, num_cols] fp32, num_cols a multiple of 32
// out.codes    [num_rows, num_cols] int8 in [-127, 127]: codes, or their high bytes
// out.low      [num_rows, num_cols] int8 in [-127, 127]: low bytes; null: codes are one byte
// out.scales   [num_rows, num_cols / 32] fp32; fine: [num_rows, num_cols / 16]
// out.sums     [num_rows, num_cols / 32] fp32: scale times the sum of the block's codes; fine: of the first half, plus of the second
// out.half_sums [num_rows, num_cols / 16] int32: sums of 16 codes
// A NaN or infinity makes its block's scale NaN, so it is never lost. x and out may not overlap.
// Source: absmax quantisation per group, as in Dettmers et al., LLM.int8(), 2022.
#pragma once

#include <stdint.h>

namespace llmi {

// The value of one step of the low byte, in steps of the high byte.
constexpr float kLowStep = 0x1p-8f;

enum class ActivationForm : uint8_t { kCoarse, kFine, kTwoBytes };

struct QuantizedRows {
  int64_t num_cols;
  int8_t* codes;
  float* scales;
  float* sums;
  int32_t* half_sums;
  bool fine = false;
  int8_t* low = nullptr;

  ActivationForm form() const {
    return low != nullptr ? ActivationForm::kTwoBytes : fine ? ActivationForm::kFine : ActivationForm::kCoarse;
  }
};

}  // namespace llmi

// Rows of a tensor on disk as numbers: the scalar definition of each storage type.
// Source of the quantised layouts: ggml's ggml-common.h and ggml-quants.c.
#pragma once

#include <cstdint>

#include "core/dtype.h"

namespace llmi {

// num_values (a multiple of the type's block) values from `row` to fp32. Exact where the type allows:
// Q4_1 and Q4_K round once.
void DequantizeRow(DType dtype, const uint8_t* row, int64_t num_values, float* out);

// 32 consecutive values of a quantised row as codes: value = scale code + minimum, or scale (code - offset).
struct CodeBlock {
  uint8_t codes[32];
  uint16_t half_scale;    // Q4_0, Q4_1, Q5_0, Q8_0: fp16 bits
  uint16_t half_minimum;  // Q4_1: fp16 bits
  float scales[2];        // Q4_K: [0]; Q6_K: one for each 16 values
  float minimum;          // Q4_K
};

// Block `index` of 32 values. Codes: 4-bit types as stored; Q5_0, Q8_0 and Q6_K shifted to offset 128.
void ReadCodeBlock(DType dtype, const uint8_t* row, int64_t index, CodeBlock* block);

}  // namespace llmi

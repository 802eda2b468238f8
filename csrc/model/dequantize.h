// Converts rows of a tensor on disk to fp32: the scalar definition of each storage type.
// Source of the quantised layouts: ggml's ggml-common.h and ggml-quants.c.
#pragma once

#include <cstdint>

#include "core/dtype.h"

namespace llmi {

// Converts num_values values (a multiple of the type's block size) from `row` to fp32. Exact, except that Q4_1 and
// Q4_K round once.
void DequantizeRow(DType dtype, const uint8_t* row, int64_t num_values, float* out);

// The codes of 32 consecutive values of a quantised row; no code is negative. value = scale * code + minimum, or
// scale * (code - offset), where offset is 8 (Q4_0), 16 (Q5_0), 32 (Q6_K) or 128 (Q8_0).
struct CodeBlock {
  uint8_t codes[32];
  uint16_t half_scale;    // fp16 bits; Q4_K, Q6_K: d of the super-block, scale = d scale_codes[...]
  uint16_t half_minimum;  // fp16 bits; Q4_1; Q4_K: -d_min, minimum = half_minimum scale_codes[1]
  int8_t scale_codes[2];  // Q4_K: scale, minimum; Q6_K: scales of 16 values each
};

// Reads the codes of block `index`, which has values [32 index, 32 index + 32) of the row.
void ReadCodeBlock(DType dtype, const uint8_t* row, int64_t index, CodeBlock* block);

}  // namespace llmi

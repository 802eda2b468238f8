// Converts rows of a tensor on disk to fp32: the scalar definition of each storage type.
// Source of the quantised layouts: ggml's ggml-common.h and ggml-quants.c.
#pragma once

#include <cstdint>

#include "core/dtype.h"
#include "kernels/layout/packed_weights.h"

namespace llmi {

// The form in which the kernels read a quantised storage type. It holds the type's values exactly.
PackedType OwnPackedType(DType dtype);
// The levels of its codes, if that form has a table.
CodeTable CodeTableOf(DType dtype);
// Whether a type is unpacked: its form takes more memory than the file does.
constexpr bool IsUnpacked(DType dtype) { return dtype >= DType::kTQ1_0; }

// Converts num_values values (a multiple of the type's block size) from `row` to fp32. Exact, except that types with minima round once.
void DequantizeRow(DType dtype, const uint8_t* row, int64_t num_values, float* out);

// The codes of 32 consecutive values of a quantised row in the form OwnPackedType, with what that form has of the rest: see
// kernels/layout/packed_weights.h.
struct CodeBlock {
  uint8_t codes[32];
  uint16_t half_scale;     // fp16 bits: the scale, or d
  uint16_t half_minimum;   // fp16 bits: the minimum, or -d_min
  uint8_t scale_codes[2];  // PackedScale::kBytes, kNibbles and kExponent
  float scales[2];         // PackedScale::kFloat
};

// Reads the codes of block `index`, which has values [32 index, 32 index + 32) of the row.
void ReadCodeBlock(DType dtype, const uint8_t* row, int64_t index, CodeBlock* block);

}  // namespace llmi

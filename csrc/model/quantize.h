// Rows of numbers as quantised blocks: what ggml's reference quantisation writes, bit for bit.
#pragma once

#include <cstdint>

#include "core/dtype.h"

namespace llmi {

// num_values (a multiple of 32) finite values to blocks of Q8_0 or Q4_0.
void QuantizeRow(DType dtype, const float* values, int64_t num_values, uint8_t* out);

}  // namespace llmi

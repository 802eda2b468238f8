// Quantises rows of numbers to the same bits as ggml's reference quantisation.
#pragma once

#include <cstdint>

#include "core/dtype.h"

namespace llmi {

// Quantises num_values (a multiple of 32) finite values to blocks of Q8_0 or Q4_0.
void QuantizeRow(DType dtype, const float* values, int64_t num_values, uint8_t* out);

}  // namespace llmi

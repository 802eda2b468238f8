// linear_input: the forms in which linear layers read x beside fp32. RmsNorm and GatedActivation make them of the rows that they
// have just written, while those are in the first-level cache; ConvertInput makes them of any rows. The bits are the same.
//
// x          [num_rows, num_cols] fp32
// quantized  kernels/ops/quantize_rows.h, of num_cols columns; codes null: not wanted
// rounded    [num_rows, num_cols] bf16, nearest even, a NaN stays one; null: not wanted. On the CPU alone: a GPU's layers round
//            what they read
#pragma once

#include <stdint.h>

#include "kernels/ops/context.h"
#include "kernels/ops/quantize_rows.h"

namespace llmi {

struct LinearInput {
  QuantizedRows quantized{};
  uint16_t* rounded = nullptr;

  bool wanted() const { return quantized.codes != nullptr || rounded != nullptr; }
};

void ConvertInput(const KernelContext& context, const float* x, int64_t num_rows, int64_t num_cols, const LinearInput& input);

}  // namespace llmi

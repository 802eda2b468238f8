// linear_input: the forms of x other than fp32 that linear layers read. Norm and Activate make them from the rows that they
// have just written, while these are in the first-level cache; ConvertInput makes them from any rows. The bits are the same.
//
// x          [num_rows, num_cols] fp32
// quantized  kernels/ops/quantize_rows.h, of num_cols columns; codes null: not wanted
// rounded    [num_rows, num_cols] bf16, nearest even, a NaN stays one; null: not wanted. Must be null with a device, whose layers
//            round x as they read it
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

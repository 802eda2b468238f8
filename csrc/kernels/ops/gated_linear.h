// gated_linear: Linear of two parts, gate and up, then GatedActivation of what it gives; the bits of both.
//
// layers  parts gate and up, both of `size` output columns; out [num_rows, 2 * size], which the op may leave as it is
// out     [num_rows, size], may not overlap; where input.quantized alone is wanted, the op may leave it as it is
// input   kernels/ops/linear_input.h, of out
#pragma once

#include "kernels/ops/context.h"
#include "kernels/ops/gated_activation.h"
#include "kernels/ops/linear.h"
#include "kernels/ops/linear_input.h"

namespace llmi {

void GatedLinear(const KernelContext& context, const LinearArgs& layers, Activation activation, float* out, const LinearInput& input);

}  // namespace llmi

// gated_linear: Linear of two parts, gate and up, then GatedActivation of its output, with the same bits as the two ops.
// layers  parts gate and up, both of `size` output columns; out [num_rows, 2 * size] is scratch and may stay unwritten
// out     [num_rows, size], may not overlap; may stay unwritten if `input` wants only quantized
// input   the forms of out to make (kernels/ops/linear_input.h)
#pragma once

#include "kernels/ops/context.h"
#include "kernels/ops/gated_activation.h"
#include "kernels/ops/linear.h"
#include "kernels/ops/linear_input.h"

namespace llmi {

void GatedLinear(const KernelContext& context, const LinearArgs& layers, Activation activation, float* out, const LinearInput& input);

}  // namespace llmi

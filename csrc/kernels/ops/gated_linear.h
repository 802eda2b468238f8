// gated_linear: Linear of two parts, gate and up, then Activate of its output, with the same bits as the two ops.
// layers      parts gate and up, both of `size` output columns; out [num_rows, 2 * size] is scratch and may stay unwritten
// activation  gated, of layers.out; its out [num_rows, size] may stay unwritten if `input` wants only quantized
// input       the forms of its out to make (kernels/ops/linear_input.h)
#pragma once

#include "kernels/ops/activation.h"
#include "kernels/ops/context.h"
#include "kernels/ops/linear.h"
#include "kernels/ops/linear_input.h"

namespace llmi {

void GatedLinear(const KernelContext& context, const LinearArgs& layers, const ActivationArgs& activation, const LinearInput& input);
// Checks the arguments as GatedLinear does, and throws the same errors.
void CheckGatedLinear(const KernelContext& context, const LinearArgs& layers, const ActivationArgs& activation, const LinearInput& input);

}  // namespace llmi

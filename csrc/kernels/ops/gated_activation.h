// gated_activation: out = act(gate) * up, element by element; act is SiLU or tanh-GELU (core/scalar_math.h).
//
// gate_up  num_rows rows of 2 * size fp32: gate, then up; out [num_rows, size], may not overlap gate_up
// input    other forms of out to make (kernels/ops/linear_input.h)
#pragma once

#include <stdint.h>

#include "kernels/ops/activation.h"
#include "kernels/ops/context.h"
#include "kernels/ops/linear_input.h"

namespace llmi {

void GatedActivation(const KernelContext& context, Activation activation, const float* gate_up, int64_t num_rows, int64_t size, float* out,
                     const LinearInput& input = {});

}  // namespace llmi

// linear_step: linear layers with what stands before and behind them, as one op: the norm of the rows that they read, and the activation of
// gate and up. Each part is the op of that name, in this order, with the same bits.
//
// norm        null: none. Of whole rows: its out is layers.x, and `input` the forms of it. On a device neither need be stored
// activation  null: none; else layers are those of gated_linear, and `forms` what it makes of its output
#pragma once

#include "kernels/ops/activation.h"
#include "kernels/ops/context.h"
#include "kernels/ops/linear.h"
#include "kernels/ops/linear_input.h"
#include "kernels/ops/norm.h"

namespace llmi {

struct LinearStep {
  const NormArgs* norm = nullptr;
  LinearInput input = {};
  LinearArgs layers;
  const ActivationArgs* activation = nullptr;
  LinearInput forms = {};
};

void RunLinearStep(const KernelContext& context, const LinearStep& step);

}  // namespace llmi

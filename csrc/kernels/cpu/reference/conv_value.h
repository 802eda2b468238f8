// The scalar definition of a causal convolution: one channel of one row.
#pragma once

#include "core/scalar_math.h"
#include "kernels/ops/conv_step.h"

namespace llmi::reference {
namespace {

LLMI_HD inline void StepChannel(const ConvStep& step, int64_t i) {
  float sum = step.bias != nullptr ? step.bias[i] : 0.0f;
  for (int64_t t = 0; t + 1 < step.length; ++t) {
    float* held = step.state + t * step.channels + i;
    sum = Fma(step.weight[t * step.weight_stride + i], *held, sum);
    *held = t + 2 < step.length ? held[step.channels] : step.input[i];
  }
  sum = Fma(step.weight[(step.length - 1) * step.weight_stride + i], step.input[i], sum);
  if (step.out != nullptr) step.out[i] = step.activation == ConvActivation::kSilu ? SiluF32(sum) : sum;
}

}  // namespace
}  // namespace llmi::reference

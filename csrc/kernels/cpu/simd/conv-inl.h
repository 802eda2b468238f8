// conv_step over 16 lanes. Contract: kernels/ops/conv_step.h; definition: kernels/cpu/reference/conv.cc.
#pragma once

namespace llmi::LLMI_ISA_NAMESPACE {

void conv_step(const ConvStep& step) {
  for (int64_t i = 0; i < step.channels; i += 16) {
    const F32x16 input = Load(step.input + i);
    F32x16 sum = step.bias != nullptr ? Load(step.bias + i) : Zero();
    for (int64_t t = 0; t + 1 < step.length; ++t) {
      float* held = step.state + t * step.channels + i;
      sum = Fma(Load(step.weight + t * step.weight_stride + i), Load(held), sum);
      Store(held, t + 2 < step.length ? Load(held + step.channels) : input);
    }
    sum = Fma(Load(step.weight + (step.length - 1) * step.weight_stride + i), input, sum);
    if (step.out != nullptr) Store(step.out + i, step.activation == ConvActivation::kSilu ? Silu(sum) : sum);
  }
}

}  // namespace llmi::LLMI_ISA_NAMESPACE

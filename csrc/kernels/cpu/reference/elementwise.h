// The scalar definitions of gated_activation and rope: one element, and one pair.
#pragma once

#include "core/scalar_math.h"
#include "kernels/ops/gated_activation.h"

namespace llmi::reference {
namespace {

LLMI_HD inline float GatedValue(Activation activation, float gate, float up) {
  return (activation == Activation::kSilu ? SiluF32(gate) : GeluTanhF32(gate)) * up;
}

LLMI_HD inline void RotatePair(float* x1, float* x2, float cosine, float sine) {
  const float a = *x1;
  const float b = *x2;
  *x1 = Fma(a, cosine, 0.0f - b * sine);
  *x2 = Fma(b, cosine, a * sine);
}

}  // namespace
}  // namespace llmi::reference

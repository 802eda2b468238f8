// activation: out = act(x), or act(gate) * up, element by element (core/scalar_math.h).
//   kSilu x sigmoid(x); kGeluTanh; kGelu (erf); kRelu; kRelu2 relu(x)^2; kXielu, kSwigluClamped (parameters)
// kXielu, with four parameters a_p, a_n, b, eps: x > 0: fma(a_p x, x, b x); else fma(expm1(min(x, eps)) - x, a_n, b x)
// kSwigluClamped, gated, with three parameters limit, alpha, plus: g = min(gate, limit), u = up no farther from 0 than limit;
//   (g sigmoid(alpha g)) (u + plus); NaN stays NaN
//
// x       num_rows rows of size fp32; gated: num_rows rows of 2 * size: gate, then up; or with `up` rows of the gate alone.
//         out [num_rows, size], may not overlap x
// input   other forms of out to make (kernels/ops/linear_input.h)
// Sources: Hendrycks and Gimpel, 2016 (GELU); So et al., Primer, 2021 (ReLU^2); Huang and Schlag, xIELU, 2024;
// OpenAI, gpt-oss, 2025 (clamped SwiGLU).
#pragma once

#include <stdint.h>

#include "kernels/ops/context.h"
#include "kernels/ops/linear_input.h"

namespace llmi {

enum class Activation : uint8_t { kSilu, kGeluTanh, kGelu, kRelu, kRelu2, kXielu, kSwigluClamped };

struct ActivationArgs {
  Activation activation;
  bool gated;
  float parameters[4] = {0, 0, 0, 0};  // kXielu, kSwigluClamped
  const float* x;
  int64_t num_rows;
  int64_t size;
  float* out;
  const float* up = nullptr;  // gated: rows up_stride apart; null: behind those of the gate
  int64_t up_stride = 0;
};

void Activate(const KernelContext& context, const ActivationArgs& args, const LinearInput& input = {});

}  // namespace llmi

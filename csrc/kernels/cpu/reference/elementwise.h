// The scalar definitions of norm, activation, rope and gate: one element, and one pair.
#pragma once

#include "core/scalar_math.h"
#include "kernels/ops/activation.h"
#include "kernels/ops/norm.h"
#include "kernels/ops/row_ops.h"

namespace llmi::reference {
namespace {

// One group of a norm: what its values are normed with.
struct NormedGroup {
  const float* weight;  // null: none
  const float* bias;    // null: none
  bool is_layer;
  bool accumulate;
  float mean;  // kLayer
  float inverse;

  LLMI_HD float Centred(float x) const { return is_layer ? x - mean : x; }
  LLMI_HD float Normed(int64_t i, float x) const {
    float value = Centred(x) * inverse;
    if (weight != nullptr) value = value * weight[i];
    if (bias != nullptr) value = value + bias[i];
    return value;
  }
  LLMI_HD void Store(int64_t i, float x, float* out) const { out[i] = accumulate ? out[i] + Normed(i, x) : Normed(i, x); }
};

// Mean and inverse are still to be found.
LLMI_HD inline NormedGroup NormedGroupOf(const NormArgs& args, int64_t group) {
  const int64_t offset = args.own_weights ? group * args.size : 0;
  return {args.weight != nullptr ? args.weight + offset : nullptr,
          args.bias != nullptr ? args.bias + offset : nullptr,
          args.kind == NormKind::kLayer,
          args.accumulate,
          0.0f,
          0.0f};
}

LLMI_HD inline float Activated(const ActivationArgs& args, float x) {
  switch (args.activation) {
    case Activation::kSilu: return SiluF32(x);
    case Activation::kGeluTanh: return GeluTanhF32(x);
    case Activation::kGelu: return GeluF32(x);
    case Activation::kRelu: return ReluF32(x);
    case Activation::kRelu2: return ReluF32(x) * ReluF32(x);
    case Activation::kXielu:
    case Activation::kSwigluClamped: break;
  }
  return XieluF32(x, args.parameters[0], args.parameters[1], args.parameters[2], args.parameters[3]);
}

// act(x) * up.
LLMI_HD inline float GatedActivated(const ActivationArgs& args, float x, float up) {
  if (args.activation != Activation::kSwigluClamped) return Activated(args, x) * up;
  return SwigluClampedF32(x, up, args.parameters[0], args.parameters[1], args.parameters[2]);
}

struct Pair {
  float first, second;
};
LLMI_HD inline Pair Rotated(float x1, float x2, float cosine, float sine) {
  return {Fma(x1, cosine, 0.0f - x2 * sine), Fma(x2, cosine, x1 * sine)};
}
LLMI_HD inline void RotatePair(float* x1, float* x2, float cosine, float sine) {
  const Pair rotated = Rotated(*x1, *x2, cosine, sine);
  *x1 = rotated.first;
  *x2 = rotated.second;
}

// Value i of a row.
LLMI_HD inline void GateValue(const GateArgs& args, int64_t row, int64_t i) {
  float* x = args.x + row * args.num_heads * args.head_dim;
  const float* gate = args.gate + row * args.gate_stride;
  x[i] = x[i] * SigmoidF32(gate[args.per_head ? i / args.head_dim : i]);
}

}  // namespace
}  // namespace llmi::reference

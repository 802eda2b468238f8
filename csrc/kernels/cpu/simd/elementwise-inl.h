// round_bf16, norm, rope, activate, row_ops and embedding over 16 lanes.
// Contracts: the headers in kernels/ops; definitions: kernels/cpu/reference.
#pragma once

#include "core/bfloat16.h"
#include "kernels/cpu/reference/elementwise.h"
#include "kernels/cpu/reference/packed_block.h"

namespace llmi::LLMI_ISA_NAMESPACE {

void round_bf16(const float* x, int64_t size, uint16_t* out) {
  int64_t i = 0;
  for (; i + 16 <= size; i += 16) StoreBfloat16(out + i, Load(x + i));
  for (; i < size; ++i) out[i] = FloatToBfloat16(x[i]);
}

namespace {

// The first `count` of 16 values; the other lanes are zero.
inline F32x16 LoadFirst(const float* p, int64_t count) {
  if (count >= 16) return Load(p);
  float values[16] = {};
  for (int64_t i = 0; i < count; ++i) values[i] = p[i];
  return Load(values);
}

inline float SumOf(const float* x, int64_t size) {
  F32x16 lanes = Zero();
  for (int64_t i = 0; i < size; i += 16) lanes = Add(lanes, LoadFirst(x + i, size - i));
  return FoldSum(lanes);
}

template <bool kLayer>
inline float SumOfSquares(const float* x, int64_t size, F32x16 mean) {
  F32x16 lanes = Zero();
  for (int64_t i = 0; i < size; i += 16) {
    F32x16 value = LoadFirst(x + i, size - i);
    if constexpr (kLayer) value = Sub(value, mean);
    if (kLayer && size - i < 16) value = KeepLanes(value, 0, static_cast<int>(size - i), Zero());
    lanes = Fma(value, value, lanes);
  }
  return FoldSum(lanes);
}

template <bool kLayer>
inline void StoreNormed(const reference::NormedGroup& normed, const float* x, int64_t size, float* out) {
  const F32x16 mean = Set1(normed.mean);
  const F32x16 inverse = Set1(normed.inverse);
  int64_t i = 0;
  for (; i + 16 <= size; i += 16) {
    F32x16 value = Load(x + i);
    if constexpr (kLayer) value = Sub(value, mean);
    value = Mul(value, inverse);
    if (normed.weight != nullptr) value = Mul(value, Load(normed.weight + i));
    if (normed.bias != nullptr) value = Add(value, Load(normed.bias + i));
    Store(out + i, normed.accumulate ? Add(Load(out + i), value) : value);
  }
  for (; i < size; ++i) normed.Store(i, x[i], out);
}

template <bool kLayer>
inline void NormGroup(const NormArgs& args, int64_t group, const float* x, float* out) {
  const auto size = static_cast<float>(args.size);
  reference::NormedGroup normed = reference::NormedGroupOf(args, group);
  if constexpr (kLayer) normed.mean = SumOf(x, args.size) / size;
  normed.inverse = 1.0f / __builtin_sqrtf(SumOfSquares<kLayer>(x, args.size, Set1(normed.mean)) / size + args.eps);
  StoreNormed<kLayer>(normed, x, args.size, out);
}

}  // namespace

void norm(const NormArgs& args, int64_t row_begin, int64_t row_end) {
  for (int64_t row = row_begin; row < row_end; ++row) {
    for (int64_t group = 0; group < args.num_groups; ++group) {
      const float* x = args.x + row * args.x_stride + group * NormGroupStride(args);
      float* out = args.out + row * args.out_stride + group * NormGroupStride(args);
      if (args.kind == NormKind::kLayer) {
        NormGroup<true>(args, group, x, out);
      } else {
        NormGroup<false>(args, group, x, out);
      }
    }
  }
}

void rope(const RopeArgs& args, int64_t row_begin, int64_t row_end) {
  const int64_t half = args.rotary_dim / 2;
  if (half % 16 != 0) {
    reference::rope(args, row_begin, row_end);
    return;
  }
  for (int64_t row = row_begin; row < row_end; ++row) {
    for (int64_t head = 0; head < args.num_heads; ++head) {
      float* x = args.x + row * args.x_stride + head * RopeHeadStride(args);
      for (int64_t i = 0; i < half; i += 16) {
        const F32x16 c = Load(args.cosine + row * half + i);
        const F32x16 s = Load(args.sine + row * half + i);
        const F32x16 x1 = Load(x + i);
        const F32x16 x2 = Load(x + i + half);
        Store(x + i, Fma(x1, c, Sub(Zero(), Mul(x2, s))));
        Store(x + i + half, Fma(x2, c, Mul(x1, s)));
      }
    }
  }
}

namespace {

// Whole lanes; returns the number of values done. activation(lanes): its value.
template <typename OfLanes>
inline int64_t ActivateLanes(const float* x, const float* up, int64_t size, float* out, const OfLanes& activation) {
  int64_t i = 0;
  if (up != nullptr) {
    for (; i + 16 <= size; i += 16) Store(out + i, Mul(activation(Load(x + i)), Load(up + i)));
  } else {
    for (; i + 16 <= size; i += 16) Store(out + i, activation(Load(x + i)));
  }
  return i;
}

inline int64_t ActivateLanes(const ActivationArgs& args, const float* x, const float* up, int64_t size, float* out) {
  switch (args.activation) {
    case Activation::kSilu: return ActivateLanes(x, up, size, out, [](F32x16 a) { return Silu(a); });
    case Activation::kGeluTanh: return ActivateLanes(x, up, size, out, [](F32x16 a) { return GeluTanh(a); });
    case Activation::kGelu: return ActivateLanes(x, up, size, out, [](F32x16 a) { return Gelu(a); });
    case Activation::kRelu: return ActivateLanes(x, up, size, out, [](F32x16 a) { return Relu(a); });
    case Activation::kRelu2: return ActivateLanes(x, up, size, out, [](F32x16 a) { return Mul(Relu(a), Relu(a)); });
    case Activation::kXielu: return ActivateLanes(x, up, size, out, [&](F32x16 a) { return Xielu(a, args.parameters); });
    case Activation::kSwigluClamped: break;
  }
  int64_t i = 0;
  for (; i + 16 <= size; i += 16) Store(out + i, SwigluClamped(Load(x + i), Load(up + i), args.parameters));
  return i;
}

}  // namespace

void activate(const ActivationArgs& args, const float* x, const float* up, int64_t size, float* out) {
  const int64_t i = ActivateLanes(args, x, up, size, out);
  if (i < size) reference::activate(args, x + i, up != nullptr ? up + i : nullptr, size - i, out + i);
}

// A row has few experts, and each step depends on the one before.
void route(const RouteArgs& args, int64_t row_begin, int64_t row_end) { reference::route(args, row_begin, row_end); }

void add_scaled(const float* x, int64_t count, float scale, float* out) {
  int64_t i = 0;
  for (; i + 16 <= count; i += 16) Store(out + i, Fma(Set1(scale), Load(x + i), Load(out + i)));
  if (i < count) reference::add_scaled(x + i, count - i, scale, out + i);
}

void scale(float* x, int64_t count, float scale) {
  int64_t i = 0;
  for (; i + 16 <= count; i += 16) Store(x + i, Mul(Load(x + i), Set1(scale)));
  if (i < count) reference::scale(x + i, count - i, scale);
}

void gate(const GateArgs& args, int64_t row_begin, int64_t row_end) {
  const int64_t size = args.num_heads * args.head_dim;
  // With a gate for each head, groups of 16 values of one head share it.
  const bool in_lanes = !args.per_head || args.head_dim % 16 == 0;
  for (int64_t row = row_begin; row < row_end; ++row) {
    float* x = args.x + row * size;
    const float* gate = args.gate + row * args.gate_stride;
    int64_t i = 0;
    for (; in_lanes && i + 16 <= size; i += 16) {
      const F32x16 gates = args.per_head ? Set1(gate[i / args.head_dim]) : Load(gate + i);
      Store(x + i, Mul(Load(x + i), Sigmoid(gates)));
    }
    for (; i < size; ++i) reference::GateValue(args, row, i);
  }
}

// Reading one row of an interleaved tile is a strided gather of a few microseconds for each token, so scalar code is enough.
void embedding(const PackedView& weights, int32_t id, float scale, float* out) {
  const int64_t lane = id % kTileRows;
  const uint8_t* tile = weights.data + id / kTileRows * PackedTileBytes(weights.type, weights.num_cols);
  if (!IsQuantizedPacked(weights.type)) {
    const bool is_half = weights.type == PackedType::kF16;
    for (int64_t k = 0; k < weights.num_cols; ++k) {
      const int64_t index = k * kTileRows + lane;
      float value = 0.0f;
      if (weights.type == PackedType::kF32) {
        value = reinterpret_cast<const float*>(tile)[index];
      } else {
        const uint16_t bits = reinterpret_cast<const uint16_t*>(tile)[index];
        value = is_half ? HalfToFloat(bits) : Bfloat16ToFloat(bits);
      }
      out[k] = value * scale;
    }
    return;
  }
  const reference::PackedRow row = reference::RowOf(weights, tile, lane);
  for (int64_t block = 0; block < weights.num_cols / kBlockSize; ++block) {
    const float scales[2] = {row.Scale(block, 0), row.Scale(block, 1)};
    const float minima[2] = {row.HasMinimum() ? row.Minimum(block, 0) : 0.0f, row.HasMinimum() ? row.Minimum(block, 1) : 0.0f};
    float* values = out + block * kBlockSize;
    for (int64_t k = 0; k < kBlockSize; ++k) {
      const float level = static_cast<float>(row.Level(block, k));
      values[k] = (row.HasMinimum() ? __builtin_fmaf(scales[k / 16], level, minima[k / 16]) : scales[k / 16] * level) * scale;
    }
  }
}

}  // namespace llmi::LLMI_ISA_NAMESPACE

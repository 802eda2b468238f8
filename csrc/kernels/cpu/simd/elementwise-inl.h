// round_bf16, rms_norm, rope, gated_activation and embedding over 16 lanes.
// Contracts: the headers in kernels/ops; definitions: kernels/cpu/reference.
#pragma once

#include "core/bfloat16.h"
#include "kernels/cpu/reference/packed_block.h"

namespace llmi::LLMI_ISA_NAMESPACE {

void round_bf16(const float* x, int64_t size, uint16_t* out) {
  int64_t i = 0;
  for (; i + 16 <= size; i += 16) StoreBfloat16(out + i, Load(x + i));
  for (; i < size; ++i) out[i] = FloatToBfloat16(x[i]);
}

void rms_norm(const RmsNormArgs& args, int64_t row_begin, int64_t row_end) {
  for (int64_t row = row_begin; row < row_end; ++row) {
    for (int64_t group = 0; group < args.num_groups; ++group) {
      const float* x = args.x + row * args.x_stride + group * args.size;
      float* out = args.out + row * args.out_stride + group * args.size;
      F32x16 lanes = Zero();
      for (int64_t i = 0; i < args.size; i += 16) {
        const F32x16 value = Load(x + i);
        lanes = Fma(value, value, lanes);
      }
      const float mean = FoldSum(lanes) / static_cast<float>(args.size);
      const F32x16 inverse = Set1(1.0f / __builtin_sqrtf(mean + args.eps));
      for (int64_t i = 0; i < args.size; i += 16) {
        const F32x16 value = Mul(Mul(Load(x + i), inverse), Load(args.weight + i));
        Store(out + i, args.accumulate ? Add(Load(out + i), value) : value);
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
      float* x = args.x + row * args.x_stride + head * args.head_dim;
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

void gated_activation(Activation activation, const float* gate, const float* up, int64_t size, float* out) {
  int64_t i = 0;
  if (activation == Activation::kSilu) {
    for (; i + 16 <= size; i += 16) Store(out + i, Mul(Silu(Load(gate + i)), Load(up + i)));
  } else {
    for (; i + 16 <= size; i += 16) Store(out + i, Mul(GeluTanh(Load(gate + i)), Load(up + i)));
  }
  if (i < size) reference::gated_activation(activation, gate + i, up + i, size - i, out + i);
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

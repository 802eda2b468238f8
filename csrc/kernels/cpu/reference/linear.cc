#include "kernels/ops/linear.h"

#include "core/bfloat16.h"
#include "kernels/cpu/reference/packed_block.h"
#include "kernels/dispatch/kernel_table.h"

namespace llmi::reference {
namespace {

int32_t ActivationCode(const QuantizedRows& x, int64_t index) {
  return x.low != nullptr ? 256 * x.codes[index] + x.low[index] : x.codes[index];
}

// Adds a block of weights that have a scale for each 16 columns.
float AddHalves(const PackedRow& w, int64_t block, const int32_t* dots, const QuantizedRows& x, int64_t x_block, float accumulator) {
  for (int64_t half = 0; half < 2; ++half) {
    const float dot = static_cast<float>(dots[half]);
    const float x_scale = x.fine ? x.scales[2 * x_block + half] : x.scales[x_block];
    const float scale = w.Scale(block, half);
    if (w.HasMinimum()) {
      const float sum = static_cast<float>(x.half_sums[2 * x_block + half]);
      accumulator = Fma(Fma(w.Minimum(block, half), sum, dot * scale), x_scale, accumulator);
    } else {
      accumulator = x.fine ? Fma(dot * x_scale, scale, accumulator) : Fma(dot, scale * x_scale, accumulator);
    }
  }
  return accumulator;
}

float QuantizedDot(const PackedRow& w, const QuantizedRows& x, int64_t row) {
  const int64_t num_blocks = x.num_cols / kBlockSize;
  float accumulator = 0.0f;
  for (int64_t block = 0; block < num_blocks; ++block) {
    const int64_t x_block = row * num_blocks + block;
    int32_t dots[2] = {0, 0};
    for (int64_t k = 0; k < kBlockSize; ++k) dots[k / 16] += w.Level(block, k) * ActivationCode(x, x_block * kBlockSize + k);
    if (HasHalfScalesPacked(w.type)) {
      accumulator = AddHalves(w, block, dots, x, x_block, accumulator);
      continue;
    }
    const float scale = w.Scale(block, 0);
    if (x.fine) {
      const float first = static_cast<float>(dots[0]) * x.scales[2 * x_block];
      accumulator = Fma(Fma(static_cast<float>(dots[1]), x.scales[2 * x_block + 1], first), scale, accumulator);
    } else {
      accumulator = Fma(static_cast<float>(dots[0] + dots[1]), scale * x.scales[x_block], accumulator);
    }
    if (w.HasMinimum()) accumulator = Fma(w.Minimum(block, 0), x.sums[x_block], accumulator);
  }
  return accumulator;
}

float FloatDot(const PackedView& w, const uint8_t* tile, int64_t lane, const float* x) {
  float accumulator = 0.0f;
  for (int64_t begin = 0; begin < w.num_cols; begin += kBlockSize) {
    const int64_t end = begin + kBlockSize < w.num_cols ? begin + kBlockSize : w.num_cols;
    float sum = 0.0f;
    for (int64_t k = begin; k < end; ++k) sum = Fma(FloatWeight(w.type, tile, k, lane), x[k], sum);
    accumulator = accumulator + sum;
  }
  return accumulator;
}

float Bf16Dot(const PackedView& w, const uint8_t* tile, int64_t lane, const uint16_t* x) {
  float sum = 0.0f;
  for (int64_t k = 0; k < w.num_cols; k += 2) {
    sum = DotPair(sum, FloatWeight(w.type, tile, k, lane), Bfloat16ToFloat(x[k]), FloatWeight(w.type, tile, k + 1, lane),
                  Bfloat16ToFloat(x[k + 1]));
  }
  return sum;
}

// Each output of the tiles is dot(tile, lane, row), plus bias, plus out if accumulate.
template <typename Dot>
void ForEachOutput(const LinearArgs& args, const LinearPart& part, int64_t tile_begin, int64_t tile_end, const Dot& dot) {
  const PackedView& w = part.weights;
  for (int64_t tile_index = tile_begin; tile_index < tile_end; ++tile_index) {
    const uint8_t* tile = w.data + tile_index * PackedTileBytes(w.type, w.num_cols);
    for (int64_t lane = 0; lane < kTileRows; ++lane) {
      const int64_t column = tile_index * kTileRows + lane;
      if (column >= w.num_rows) break;
      for (int64_t row = 0; row < args.num_rows; ++row) {
        float value = dot(tile, lane, row);
        if (part.bias != nullptr) value = value + part.bias[column];
        float* out = args.out + row * args.out_stride + part.out_column + column;
        *out = args.accumulate ? *out + value : value;
      }
    }
  }
}

}  // namespace

void linear_quantized(const LinearArgs& args, const LinearPart& part, int64_t tile_begin, int64_t tile_end) {
  ForEachOutput(args, part, tile_begin, tile_end, [&](const uint8_t* tile, int64_t lane, int64_t row) {
    return QuantizedDot(RowOf(part.weights, tile, lane), args.quantized, row);
  });
}

void linear_float(const LinearArgs& args, const LinearPart& part, int64_t tile_begin, int64_t tile_end) {
  ForEachOutput(args, part, tile_begin, tile_end, [&](const uint8_t* tile, int64_t lane, int64_t row) {
    return FloatDot(part.weights, tile, lane, args.x + row * args.x_stride);
  });
}

void linear_bf16(const LinearArgs& args, const LinearPart& part, int64_t tile_begin, int64_t tile_end) {
  const PackedView& w = part.weights;
  ForEachOutput(args, part, tile_begin, tile_end,
                [&](const uint8_t* tile, int64_t lane, int64_t row) { return Bf16Dot(w, tile, lane, args.x_bf16 + row * w.num_cols); });
}

}  // namespace llmi::reference

// linear: out = x W^T (+ bias) (+ out), for one or several weight matrices side by side in the output.
// Each output element is summed in one fixed order, in fp32, for any number of rows: by columns, ascending.
//   float weights:      for each block of 32 columns, sum = fma(w[k], x[k], sum) from zero, w widened to fp32; then
//                       acc = acc + sum (blocks keep the rounding error near that of a tree of sums)
//     with x_bf16:      bf16 weights in pairs of columns, sum = DotPair(sum, pair of w, pair of x) (core/bfloat16.h) from zero over all
//                       pairs; no blocks: rounding x to 8 bits loses more than they would save
//   quantised weights:  for each block of 32 columns, d = exact integer sum of code x activation code,
//                       acc = fma(float(d), scale_w * scale_x, acc), then, with minima,
//                       acc = fma(minimum, sum_x, acc). With a scale for each 16 columns, the scale step for each of them
//     activations of two bytes: the same, with whole codes: d is at most 1.4e8
//     fine activations: d0, d1 of 16 columns each, acc = fma(fma(float(d1), scale_x1, float(d0) * scale_x0), scale_w, acc);
//                       with a scale for each 16 columns: acc = fma(float(d0) * scale_x0, scale_w0, acc), then the same with d1
//     minima for each 16 columns (kQ2K), all activations: acc = fma(fma(minimum0, float(h0), float(d0) * scale_w0), scale_x0, acc), where
//                       h0 is the sum of the 16 activation codes, then the same with d1, h1
// Then acc = acc + bias if there is one; out = out + acc if accumulate, else acc.
//
// x     [num_rows, num_cols] fp32 rows x_stride apart (float weights) or its quantised form
// out   [num_rows, ...] fp32, rows out_stride apart; part p is written at column parts[p].out_column
// Errors (kInvalidArgument): the column counts differ; a part is quantised and x is not; x_bf16 has an odd number of columns, or the
// context has a device.
#pragma once

#include <stdint.h>

#include <span>

#include "kernels/layout/packed_weights.h"
#include "kernels/ops/context.h"
#include "kernels/ops/quantize_rows.h"

namespace llmi {

struct LinearPart {
  PackedView weights;
  const float* bias = nullptr;  // [weights.num_rows] or null
  int64_t out_column = 0;
};

struct LinearArgs {
  const LinearPart* parts;
  int64_t num_parts;
  int64_t num_rows;
  const float* x = nullptr;  // null if every part is quantised
  int64_t x_stride = 0;
  QuantizedRows quantized = {};  // codes null if no part is quantised
  float* out;
  int64_t out_stride;
  bool accumulate = false;
  const uint16_t* x_bf16 = nullptr;  // [num_rows, num_cols] bf16, num_cols even: multiplied with bf16 weights instead of x; null: x is
};

void Linear(const KernelContext& context, const LinearArgs& args);
// Checks the arguments as Linear does, and throws the same errors.
void CheckLinear(const KernelContext& context, const LinearArgs& args);

// Most quantised rows of x that a CPU thread multiplies with one tile after the other: they stay in its first-level cache.
constexpr int64_t kLinearRowsInCache = 48;

// Output columns [begin, end) x kTileRows.
struct TileRange {
  int64_t begin;
  int64_t end;
};
// Linear for one part and these tiles. What the other columns of out hold afterwards is unspecified.
void LinearTiles(const KernelContext& context, const LinearArgs& args, std::span<const TileRange> tiles);

}  // namespace llmi

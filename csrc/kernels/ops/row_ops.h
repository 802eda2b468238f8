// Element-wise ops on rows of fp32, for the parts of a model that few families have. Each is one rounding per operation, in the order
// written.
#pragma once

#include <stdint.h>

#include "kernels/ops/context.h"

namespace llmi {

// out[i] = fma(scale, x[i], out[i]).
void AddScaled(const KernelContext& context, const float* x, int64_t count, float scale, float* out);
// x[i] = x[i] * scale.
void Scale(const KernelContext& context, float* x, int64_t count, float scale);
// Each row's `size` values times the row's factor. factors [num_rows]; rows x_stride apart.
void ScaleRows(const KernelContext& context, float* x, int64_t x_stride, int64_t num_rows, int64_t size, const float* factors);
// Each row's `size` values, no farther from 0 than limit > 0; NaN stays. Rows x_stride apart.
void ClipRows(const KernelContext& context, float* x, int64_t x_stride, int64_t num_rows, int64_t size, float limit);

// Rows of values, `stride` apart.
struct StridedRows {
  const float* values;
  int64_t stride;
};
// out[row, i] = a * b for each row's `size` values. out may be a or b.
void MultiplyRows(const KernelContext& context, const StridedRows& a, const StridedRows& b, int64_t num_rows, int64_t size, float* out,
                  int64_t out_stride);

// x = silu(gate) * x. x: num_rows rows of `size` values, dense.
void GateRows(const KernelContext& context, const StridedRows& gates, int64_t num_rows, int64_t size, float* x);

// gate: x[row, head, i] = x * sigmoid(gate). gate_stride: between rows of gates. per_head: gate [num_rows, num_heads]; else one for each
// value, laid out as x. x: num_rows rows of num_heads * head_dim, dense.
struct GateArgs {
  float* x;
  const float* gate;
  int64_t gate_stride;
  bool per_head;
  int64_t num_rows;
  int64_t num_heads;
  int64_t head_dim;
};
void Gate(const KernelContext& context, const GateArgs& args);

// out[i] = x[rows[i]]: rows of `size` values. rows [num_rows], where the op runs. out may not overlap x.
void GatherRows(const KernelContext& context, const float* x, int64_t size, const int32_t* rows, int64_t num_rows, float* out);

// copy_heads: `size` values of head h of row r, from x + r * row + h * head to out + r * out_row + h * out_head. They may not overlap.
struct HeadCopy {
  const float* x;
  int64_t row, head;
  float* out;
  int64_t out_row, out_head;
  int64_t num_rows, num_heads;
  int64_t size;
};
void CopyHeads(const KernelContext& context, const HeadCopy& copy);

}  // namespace llmi

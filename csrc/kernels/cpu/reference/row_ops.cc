#include "kernels/ops/row_ops.h"

#include "kernels/cpu/reference/elementwise.h"
#include "kernels/dispatch/kernel_table.h"

namespace llmi::reference {

void add_scaled(const float* x, int64_t count, float scale, float* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = Fma(scale, x[i], out[i]);
}

void scale(float* x, int64_t count, float scale) {
  for (int64_t i = 0; i < count; ++i) x[i] = x[i] * scale;
}

void gate(const GateArgs& args, int64_t row_begin, int64_t row_end) {
  const int64_t size = args.num_heads * args.head_dim;
  for (int64_t row = row_begin; row < row_end; ++row) {
    for (int64_t i = 0; i < size; ++i) GateValue(args, row, i);
  }
}

}  // namespace llmi::reference

#include "kernels/ops/rope.h"

#include "kernels/cpu/reference/elementwise.h"
#include "kernels/dispatch/kernel_table.h"

namespace llmi::reference {

void rope(const RopeArgs& args, int64_t row_begin, int64_t row_end) {
  const int64_t half = args.rotary_dim / 2;
  for (int64_t row = row_begin; row < row_end; ++row) {
    for (int64_t head = 0; head < args.num_heads; ++head) {
      float* x = args.x + row * args.x_stride + head * RopeHeadStride(args);
      for (int64_t i = 0; i < half; ++i) {
        RotatePair(x + i, x + i + half, args.cosine[row * half + i], args.sine[row * half + i]);
      }
    }
  }
}

}  // namespace llmi::reference

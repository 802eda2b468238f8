#include "kernels/rope.h"

#include "core/scalar_math.h"
#include "kernels/kernel_table.h"

namespace llmi::reference {

void rope(const RopeArgs& args, int64_t row_begin, int64_t row_end) {
  const int64_t half = args.rotary_dim / 2;
  for (int64_t row = row_begin; row < row_end; ++row) {
    for (int64_t head = 0; head < args.num_heads; ++head) {
      float* x = args.x + row * args.x_stride + head * args.head_dim;
      for (int64_t i = 0; i < half; ++i) {
        const float c = args.cosine[row * half + i];
        const float s = args.sine[row * half + i];
        const float x1 = x[i];
        const float x2 = x[i + half];
        x[i] = Fma(x1, c, 0.0f - x2 * s);
        x[i + half] = Fma(x2, c, x1 * s);
      }
    }
  }
}

}  // namespace llmi::reference

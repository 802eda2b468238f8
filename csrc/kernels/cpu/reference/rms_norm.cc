#include "kernels/ops/rms_norm.h"

#include "core/scalar_math.h"
#include "kernels/cpu/reference/lanes.h"
#include "kernels/dispatch/kernel_table.h"

namespace llmi::reference {

void rms_norm(const RmsNormArgs& args, int64_t row_begin, int64_t row_end) {
  for (int64_t row = row_begin; row < row_end; ++row) {
    for (int64_t group = 0; group < args.num_groups; ++group) {
      const float* x = args.x + row * args.x_stride + group * args.size;
      float* out = args.out + row * args.out_stride + group * args.size;
      float lanes[16] = {};
      for (int64_t i = 0; i < args.size; ++i) lanes[i % 16] = Fma(x[i], x[i], lanes[i % 16]);
      const float mean = FoldSum(lanes) / static_cast<float>(args.size);
      const float inverse = 1.0f / SqrtF32(mean + args.eps);
      for (int64_t i = 0; i < args.size; ++i) {
        const float value = (x[i] * inverse) * args.weight[i];
        out[i] = args.accumulate ? out[i] + value : value;
      }
    }
  }
}

}  // namespace llmi::reference

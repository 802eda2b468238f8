#include "kernels/ops/norm.h"

#include "core/scalar_math.h"
#include "kernels/cpu/reference/elementwise.h"
#include "kernels/cpu/reference/lanes.h"
#include "kernels/dispatch/kernel_table.h"

namespace llmi::reference {

void norm(const NormArgs& args, int64_t row_begin, int64_t row_end) {
  const auto size = static_cast<float>(args.size);
  for (int64_t row = row_begin; row < row_end; ++row) {
    for (int64_t group = 0; group < args.num_groups; ++group) {
      const float* x = args.x + row * args.x_stride + group * NormGroupStride(args);
      NormedGroup normed = NormedGroupOf(args, group);
      if (args.kind == NormKind::kLayer) {
        float lanes[16] = {};
        for (int64_t i = 0; i < args.size; ++i) lanes[i % 16] = lanes[i % 16] + x[i];
        normed.mean = FoldSum(lanes) / size;
      }
      float lanes[16] = {};
      for (int64_t i = 0; i < args.size; ++i) {
        const float value = normed.Centred(x[i]);
        lanes[i % 16] = Fma(value, value, lanes[i % 16]);
      }
      normed.inverse = 1.0f / SqrtF32(FoldSum(lanes) / size + args.eps);
      float* out = args.out + row * args.out_stride + group * NormGroupStride(args);
      for (int64_t i = 0; i < args.size; ++i) normed.Store(i, x[i], out);
    }
  }
}

}  // namespace llmi::reference

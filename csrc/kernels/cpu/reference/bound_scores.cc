#include "kernels/ops/bound_scores.h"

#include "core/scalar_math.h"
#include "kernels/cpu/reference/lanes.h"
#include "kernels/dispatch/kernel_table.h"

namespace llmi::reference {

void bound_scores(const BoundArgs& args) {
  for (int64_t tile = 0; tile < args.num_tiles; ++tile) {
    const float* smallest = args.bounds[tile];
    const float* largest = smallest + args.head_dim;
    for (int64_t head = 0; head < args.num_heads; ++head) {
      const float* q = args.q + head * args.head_dim;
      float lanes[16] = {};
      for (int64_t d = 0; d < args.head_dim; ++d) lanes[d % 16] = lanes[d % 16] + Max(q[d] * smallest[d], q[d] * largest[d]);
      const float score = FoldSum(lanes);
      args.scores[tile] = head == 0 ? score : Max(args.scores[tile], score);
    }
  }
}

}  // namespace llmi::reference

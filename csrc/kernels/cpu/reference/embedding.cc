#include "kernels/ops/embedding.h"

#include "kernels/cpu/reference/packed_block.h"
#include "kernels/dispatch/kernel_table.h"

namespace llmi::reference {

void embedding(const PackedView& weights, int32_t id, float scale, float* out) {
  for (int64_t k = 0; k < weights.num_cols; ++k) out[k] = WeightValue(weights, id, k) * scale;
}

}  // namespace llmi::reference

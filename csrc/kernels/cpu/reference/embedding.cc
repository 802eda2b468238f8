#include "kernels/embedding.h"

#include "kernels/cpu/reference/packed_block.h"
#include "kernels/kernel_table.h"

namespace llmi::reference {

void embedding(const PackedView& weights, int32_t id, float scale, float* out) {
  const int64_t lane = id % kTileRows;
  const uint8_t* tile = weights.data + id / kTileRows * PackedTileBytes(weights.type, weights.num_cols);
  const PackedRow row{weights.type, tile, lane};
  for (int64_t k = 0; k < weights.num_cols; ++k) {
    float value = 0.0f;
    if (IsQuantizedPacked(weights.type)) {
      const int64_t block = k / kBlockSize;
      const float code = static_cast<float>(row.Code(block, k % kBlockSize) - row.Offset());
      const float weight_scale = row.Scale(block, k % kBlockSize / 16);
      value = row.HasMinimum() ? Fma(weight_scale, code, row.Minimum(block)) : weight_scale * code;
    } else {
      value = FloatWeight(weights.type, tile, k, lane);
    }
    out[k] = value * scale;
  }
}

}  // namespace llmi::reference

#include "kernels/ops/embedding.h"

#include "core/errors.h"
#include "kernels/dispatch/device.h"
#include "kernels/dispatch/kernel_table.h"
#include "kernels/dispatch/row_tasks.h"

namespace llmi {

void CheckIds(const KernelContext& context, const PackedView& weights, const int32_t* ids, int64_t num_rows) {
  for (int64_t row = 0; row < num_rows; ++row) {
    CheckArgument((ids[row] >= 0 || context.device != nullptr) && ids[row] < weights.num_rows, "embedding: token id out of range");
  }
}

void Embedding(const KernelContext& context, const PackedView& weights, const int32_t* ids, int64_t num_rows, float scale, float* out) {
  CheckIds(context, weights, ids, num_rows);
  if (Device* device = context.device) return device->Embedding(weights, device->PlaceIds(ids, num_rows), num_rows, scale, out);
  ParallelRows(context, num_rows, 16, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) context.table->embedding(weights, ids[row], scale, out + row * weights.num_cols);
  });
}

}  // namespace llmi

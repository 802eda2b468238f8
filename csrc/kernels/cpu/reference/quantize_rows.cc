#include "kernels/ops/quantize_rows.h"

#include "core/bfloat16.h"
#include "kernels/cpu/reference/quantize_block.h"
#include "kernels/dispatch/kernel_table.h"

namespace llmi::reference {
void quantize_rows(const float* x, int64_t row_begin, int64_t row_end, const QuantizedRows& out) {
  const int64_t num_blocks = out.num_cols / kBlockSize;
  for (int64_t block = row_begin * num_blocks; block < row_end * num_blocks; ++block) QuantizeBlock(x, block, out);
}

void round_bf16(const float* x, int64_t size, uint16_t* out) {
  for (int64_t i = 0; i < size; ++i) out[i] = FloatToBfloat16(x[i]);
}

}  // namespace llmi::reference

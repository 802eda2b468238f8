#include "kernels/quantize_rows.h"

#include "core/errors.h"
#include "kernels/device.h"
#include "kernels/kernel_table.h"
#include "kernels/row_tasks.h"

namespace llmi {

void QuantizeRows(const KernelContext& context, const float* x, int64_t num_rows, const QuantizedRows& out) {
  CheckArgument(out.num_cols % kBlockSize == 0, "quantize_rows: columns must be a multiple of 32");
  if (context.device != nullptr) return context.device->QuantizeRows(x, num_rows, out);
  // 8 K values take about 1 us: fewer are not worth a second thread.
  ParallelRows(context, num_rows, std::max<int64_t>(1, 8192 / std::max<int64_t>(1, out.num_cols)),
               [&](int64_t begin, int64_t end) { context.table->quantize_rows(x, begin, end, out); });
}

void RoundRows(const KernelContext& context, const float* x, int64_t num_rows, int64_t num_cols, uint16_t* out) {
  CheckInternal(context.device == nullptr, "round_rows: on the CPU");
  ParallelRows(context, num_rows, std::max<int64_t>(1, 16384 / std::max<int64_t>(1, num_cols)), [&](int64_t begin, int64_t end) {
    context.table->round_bf16(x + begin * num_cols, (end - begin) * num_cols, out + begin * num_cols);
  });
}

}  // namespace llmi

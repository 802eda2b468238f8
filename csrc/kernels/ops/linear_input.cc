#include "kernels/ops/linear_input.h"

#include "core/errors.h"
#include "kernels/dispatch/device.h"
#include "kernels/dispatch/produced_rows.h"

namespace llmi {

void CheckInput(const KernelContext& context, int64_t num_cols, const LinearInput& input) {
  CheckArgument(input.quantized.codes == nullptr || (num_cols % kBlockSize == 0 && input.quantized.num_cols == num_cols),
                "linear_input: quantised columns must be those of x, and a multiple of 32");
  CheckArgument(input.quantized.low == nullptr || !input.quantized.fine, "linear_input: codes of two bytes have a scale for 32 columns");
  CheckInternal(input.rounded == nullptr || context.device == nullptr, "linear_input: rounded on the CPU");
}

void ConvertInput(const KernelContext& context, const float* x, int64_t num_rows, int64_t num_cols, const LinearInput& input) {
  CheckInput(context, num_cols, input);
  if (!input.wanted()) return;
  if (context.device != nullptr) return context.device->QuantizeRows(x, num_rows, input.quantized);
  // 8 K values take about 1 us; fewer do not justify a second thread.
  ProduceRows(context, x, num_rows, num_cols, 8192, input, [](int64_t, int64_t) {});
}

}  // namespace llmi

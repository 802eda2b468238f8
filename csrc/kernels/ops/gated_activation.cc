#include "kernels/ops/gated_activation.h"

#include "kernels/dispatch/device.h"
#include "kernels/dispatch/produced_rows.h"

namespace llmi {

void GatedActivation(const KernelContext& context, Activation activation, const float* gate_up, int64_t num_rows, int64_t size, float* out,
                     const LinearInput& input) {
  if (context.device != nullptr) {
    context.device->GatedActivation(activation, gate_up, num_rows, size, out);
    return ConvertInput(context, out, num_rows, size, input);
  }
  CheckInput(context, size, input);
  ProduceRows(context, out, num_rows, size, 4096, input, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float* gate = gate_up + row * 2 * size;
      context.table->gated_activation(activation, gate, gate + size, size, out + row * size);
    }
  });
}

}  // namespace llmi

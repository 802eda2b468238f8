#include "kernels/gated_activation.h"

#include "kernels/device.h"
#include "kernels/kernel_table.h"
#include "kernels/row_tasks.h"

namespace llmi {

void GatedActivation(const KernelContext& context, Activation activation, const float* gate_up, int64_t num_rows, int64_t size,
                     float* out) {
  if (context.device != nullptr) return context.device->GatedActivation(activation, gate_up, num_rows, size, out);
  ParallelRows(context, num_rows, std::max<int64_t>(1, 4096 / std::max<int64_t>(1, size)), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float* gate = gate_up + row * 2 * size;
      context.table->gated_activation(activation, gate, gate + size, size, out + row * size);
    }
  });
}

}  // namespace llmi

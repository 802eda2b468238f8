#include "kernels/ops/gated_activation.h"

#include "kernels/cpu/reference/elementwise.h"
#include "kernels/dispatch/kernel_table.h"

namespace llmi::reference {

void gated_activation(Activation activation, const float* gate, const float* up, int64_t size, float* out) {
  for (int64_t i = 0; i < size; ++i) {
    out[i] = GatedValue(activation, gate[i], up[i]);
  }
}

}  // namespace llmi::reference

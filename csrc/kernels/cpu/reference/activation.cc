#include "kernels/ops/activation.h"

#include "kernels/cpu/reference/elementwise.h"
#include "kernels/dispatch/kernel_table.h"

namespace llmi::reference {

void activate(const ActivationArgs& args, const float* x, const float* up, int64_t size, float* out) {
  for (int64_t i = 0; i < size; ++i) {
    out[i] = up != nullptr ? GatedActivated(args, x[i], up[i]) : Activated(args, x[i]);
  }
}

}  // namespace llmi::reference

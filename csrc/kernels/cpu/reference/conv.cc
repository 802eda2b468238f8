#include "kernels/cpu/reference/conv_value.h"
#include "kernels/dispatch/kernel_table.h"

namespace llmi::reference {

void conv_step(const ConvStep& step) {
  for (int64_t i = 0; i < step.channels; ++i) StepChannel(step, i);
}

}  // namespace llmi::reference

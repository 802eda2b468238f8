#include "kernels/ops/linear_step.h"

#include "core/errors.h"
#include "kernels/dispatch/device.h"
#include "kernels/ops/gated_linear.h"

namespace llmi {

void RunLinearStep(const KernelContext& context, const LinearStep& step) {
  if (step.norm != nullptr) {
    const NormArgs& norm = *step.norm;
    CheckArgument(norm.num_groups == 1 && norm.out_stride == norm.size && norm.num_rows == step.layers.num_rows &&
                      norm.size == step.layers.parts[0].weights.num_cols && !norm.accumulate,
                  "linear_step: the norm makes the rows that the layers read");
  }
  if (context.device == nullptr) {
    if (step.norm != nullptr) Norm(context, *step.norm, step.input);
    return step.activation != nullptr ? GatedLinear(context, step.layers, *step.activation, step.forms) : Linear(context, step.layers);
  }
  CheckLinear(context, step.layers);
  if (step.activation != nullptr) CheckGatedLinear(context, step.layers, *step.activation, step.forms);
  context.device->Linear(step);
}

}  // namespace llmi

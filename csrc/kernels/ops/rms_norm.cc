#include "kernels/ops/rms_norm.h"

#include "core/errors.h"
#include "kernels/dispatch/device.h"
#include "kernels/dispatch/produced_rows.h"

namespace llmi {

void RmsNorm(const KernelContext& context, const RmsNormArgs& args, const LinearInput& input) {
  CheckArgument(args.size > 0 && args.size % 16 == 0, "rms_norm: size must be a multiple of 16");
  CheckArgument(!args.accumulate || args.x != args.out, "rms_norm: out may not be x when accumulating");
  const int64_t num_cols = args.size * args.num_groups;
  CheckArgument(!input.wanted() || args.out_stride == num_cols, "rms_norm: rows that are converted must stand one after the other");
  if (context.device != nullptr) {
    context.device->RmsNorm(args);
    return ConvertInput(context, args.out, args.num_rows, num_cols, input);
  }
  CheckInput(context, num_cols, input);
  ProduceRows(context, args.out, args.num_rows, num_cols, 8192, input,
              [&](int64_t begin, int64_t end) { context.table->rms_norm(args, begin, end); });
}

}  // namespace llmi

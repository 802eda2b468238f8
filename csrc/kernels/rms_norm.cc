#include "kernels/rms_norm.h"

#include "core/errors.h"
#include "kernels/device.h"
#include "kernels/kernel_table.h"
#include "kernels/row_tasks.h"

namespace llmi {

void RmsNorm(const KernelContext& context, const RmsNormArgs& args) {
  CheckArgument(args.size > 0 && args.size % 16 == 0, "rms_norm: size must be a multiple of 16");
  CheckArgument(!args.accumulate || args.x != args.out, "rms_norm: out may not be x when accumulating");
  if (context.device != nullptr) return context.device->RmsNorm(args);
  ParallelRows(context, args.num_rows, std::max<int64_t>(1, 8192 / (args.size * args.num_groups)),
               [&](int64_t begin, int64_t end) { context.table->rms_norm(args, begin, end); });
}

}  // namespace llmi

#include "kernels/ops/norm.h"

#include "core/errors.h"
#include "kernels/dispatch/device.h"
#include "kernels/dispatch/produced_rows.h"

namespace llmi {

void Norm(const KernelContext& context, const NormArgs& args, const LinearInput& input) {
  CheckArgument(args.size > 0, "norm: size must be positive");
  CheckArgument(args.group_stride == 0 || args.group_stride >= args.size, "norm: groups may not overlap");
  CheckArgument(!args.accumulate || args.x != args.out, "norm: out may not be x when accumulating");
  const int64_t num_cols = NormGroupStride(args) * args.num_groups;
  CheckArgument(!input.wanted() || (args.out_stride == num_cols && NormGroupStride(args) == args.size),
                "norm: values that are converted must stand one after the other");
  CheckInput(context, num_cols, input);
  if (context.device != nullptr) return context.device->Norm(args, input.quantized);
  ProduceRows(context, args.out, args.num_rows, num_cols, 8192, input,
              [&](int64_t begin, int64_t end) { context.table->norm(args, begin, end); });
}

}  // namespace llmi

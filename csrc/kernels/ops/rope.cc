#include "kernels/ops/rope.h"

#include "core/errors.h"
#include "kernels/dispatch/device.h"
#include "kernels/dispatch/kernel_table.h"
#include "kernels/dispatch/row_tasks.h"

namespace llmi {

void Rope(const KernelContext& context, const RopeArgs& args) {
  CheckArgument(args.rotary_dim % 2 == 0 && args.rotary_dim <= args.head_dim, "rope: rotary_dim must be even and at most head_dim");
  CheckArgument(args.head_stride == 0 || args.head_stride >= args.head_dim, "rope: heads may not overlap");
  if (context.device != nullptr) return context.device->Rope(args);
  ParallelRows(context, args.num_rows, std::max<int64_t>(1, 8192 / (args.head_dim * args.num_heads)),
               [&](int64_t begin, int64_t end) { context.table->rope(args, begin, end); });
}

}  // namespace llmi

#include "kernels/ops/route.h"

#include "core/errors.h"
#include "kernels/dispatch/device.h"
#include "kernels/dispatch/kernel_table.h"
#include "kernels/dispatch/row_tasks.h"

namespace llmi {

void Route(const KernelContext& context, const RouteArgs& args) {
  CheckArgument(args.num_experts >= 1 && args.num_experts <= kMostExperts, "route: 1 to 1,024 experts");
  CheckArgument(args.num_groups >= 1 && args.num_experts % args.num_groups == 0, "route: groups must divide the experts");
  CheckArgument(args.used_groups >= 1 && args.used_groups <= args.num_groups, "route: more groups are used than there are");
  const int64_t choice = args.num_experts / args.num_groups * args.used_groups;
  CheckArgument(args.num_used >= 1 && args.num_used <= choice, "route: more experts are used than there are");
  CheckArgument(args.score != RouterScore::kSparseMixer || args.num_used == 2, "route: the sparse mixer uses two experts");
  if (context.device != nullptr) return context.device->Route(args);
  ParallelRows(context, args.num_rows, 16, [&](int64_t begin, int64_t end) { context.table->route(args, begin, end); });
}

}  // namespace llmi

#include "kernels/ops/route.h"

#include "kernels/cpu/reference/route_row.h"
#include "kernels/dispatch/kernel_table.h"

namespace llmi::reference {

void route(const RouteArgs& args, int64_t row_begin, int64_t row_end) {
  float keys[kMostExperts];
  for (int64_t row = row_begin; row < row_end; ++row) RouteRow(args, row, keys);
}

}  // namespace llmi::reference

// Splits rows into contiguous ranges, a few per thread. Rows are independent, so the split never changes a result.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/thread_pool.h"
#include "kernels/ops/context.h"

namespace llmi {

// Calls body(begin, end) over [0, num_rows) in parallel; ranges hold at least min_rows rows.
template <typename Body>
void ParallelRows(const KernelContext& context, int64_t num_rows, int64_t min_rows, const Body& body) {
  const int64_t wanted = std::max<int64_t>(1, num_rows / std::max<int64_t>(1, min_rows));
  const int64_t num_tasks = std::min<int64_t>(wanted, int64_t{4} * context.num_threads);
  context.pool->ParallelFor(num_tasks, context.num_threads,
                            [&](int64_t task) { body(num_rows * task / num_tasks, num_rows * (task + 1) / num_tasks); });
}

}  // namespace llmi

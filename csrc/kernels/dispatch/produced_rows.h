// Runs an op that writes rows for a linear layer, a few rows at a time, and converts these rows to the other forms that the layer reads
// (kernels/ops/linear_input.h) while they are in the first-level cache. The number of rows at a time never changes a result.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/dispatch/kernel_table.h"
#include "kernels/dispatch/row_tasks.h"
#include "kernels/ops/linear_input.h"

namespace llmi {

// Throws Error(kInvalidArgument) if rows of num_cols columns cannot be converted to the forms that `input` names.
void CheckInput(const KernelContext& context, int64_t num_cols, const LinearInput& input);

// Calls produce(begin, end) for ranges of [0, num_rows) in parallel, and converts the rows of each range afterwards. produce must fill
// these rows of x [num_rows, num_cols]. min_values: about the least number of values in a task.
template <typename Produce>
void ProduceRows(const KernelContext& context, const float* x, int64_t num_rows, int64_t num_cols, int64_t min_values,
                 const LinearInput& input, const Produce& produce) {
  const int64_t columns = std::max<int64_t>(1, num_cols);
  // Up to eight rows at a time: quantize_rows takes 16 blocks at once, so few blocks of eight rows remain for its slower path.
  const int64_t at_once = input.wanted() ? std::clamp<int64_t>(16384 / columns, 1, 8) : num_rows;
  ParallelRows(context, num_rows, min_values / columns, [&](int64_t task_begin, int64_t task_end) {
    for (int64_t begin = task_begin; begin < task_end; begin += at_once) {
      const int64_t end = std::min(begin + at_once, task_end);
      produce(begin, end);
      if (input.quantized.codes != nullptr) context.table->quantize_rows(x, begin, end, input.quantized);
      if (input.rounded != nullptr) {
        context.table->round_bf16(x + begin * num_cols, (end - begin) * num_cols, input.rounded + begin * num_cols);
      }
    }
  });
}

}  // namespace llmi

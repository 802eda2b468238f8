// Rows that an op writes and a linear layer reads next: some at a time, so that their other forms (kernels/ops/linear_input.h) are made
// of what is still in the first-level cache. How many never enters a result.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/dispatch/kernel_table.h"
#include "kernels/dispatch/row_tasks.h"
#include "kernels/ops/linear_input.h"

namespace llmi {

// Throws Error(kInvalidArgument) if rows of num_cols columns cannot be converted to the forms that `input` names.
void CheckInput(const KernelContext& context, int64_t num_cols, const LinearInput& input);

// Calls produce(begin, end) over [0, num_rows) in parallel, which fills these rows of x [num_rows, num_cols], and converts them. A task has
// about min_values of them at least.
template <typename Produce>
void ProduceRows(const KernelContext& context, const float* x, int64_t num_rows, int64_t num_cols, int64_t min_values,
                 const LinearInput& input, const Produce& produce) {
  const int64_t columns = std::max<int64_t>(1, num_cols);
  // Eight, as quantize_rows takes 16 blocks at once: of eight rows hardly any are left over.
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

#include <algorithm>

#include "kernels/cpu/reference/recurrence_values.h"
#include "kernels/dispatch/kernel_table.h"

namespace llmi::reference {

void recurrence_factors(const RecurrenceArgs& args, int64_t row_begin, int64_t row_end) {
  for (int64_t row = row_begin; row < row_end; ++row) {
    for (int64_t head = 0; head < args.shape.num_heads; ++head) FindFactors(args, row, head);
  }
}

void recurrence_step(const RecurrenceArgs& args, const RecurrenceTask& task, float* state, const float* input, float* out) {
  for (int64_t block = task.block_begin; block < task.block_end; ++block, state += args.shape.key_size * kStateColumns) {
    const int64_t begin = block * kStateColumns;
    for (int64_t column = begin; column < std::min(args.shape.value_size, begin + kStateColumns); ++column) {
      StepColumn(args, task.head, column, state + column - begin, kStateColumns, input, out);
    }
  }
}

}  // namespace llmi::reference

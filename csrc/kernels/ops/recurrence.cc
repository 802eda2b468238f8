#include "kernels/ops/recurrence.h"

#include "core/errors.h"
#include "kernels/dispatch/device.h"
#include "kernels/dispatch/kernel_table.h"
#include "kernels/dispatch/row_tasks.h"
#include "kernels/ops/state.h"

namespace llmi {

void Recurrence(const KernelContext& context, const RecurrenceArgs& args, StateRows rows) {
  const RecurrenceShape& shape = args.shape;
  CheckArgument(shape.key_size >= 1 && shape.key_size <= kMostKeySize, "recurrence: keys have 1 to 256 values");
  CheckArgument(shape.value_size >= 1 && shape.num_heads >= 1, "recurrence: there are no values");
  CheckArgument(shape.num_groups >= 1 && shape.num_heads % shape.num_groups == 0, "recurrence: groups must divide the heads");
  CheckArgument(!shape.is_delta || args.write != nullptr, "recurrence: the delta rule needs write");
  rows.inputs = args.inputs;
  rows.input_floats = shape.input_floats();
  rows.input_stride = args.input_stride;
  if (context.device != nullptr) return context.device->Recurrence(args, rows);
  ParallelRows(context, args.num_rows, 4, [&](int64_t begin, int64_t end) { context.table->recurrence_factors(args, begin, end); });
  const int64_t part_blocks = shape.num_blocks() % 2 == 0 ? 2 : 1;
  const int64_t head_parts = shape.num_blocks() / part_blocks;
  const auto step = [&](int64_t part, float* state, const float* input, float* out) {
    const int64_t begin = part % head_parts * part_blocks;
    context.table->recurrence_step(args, {.head = part / head_parts, .block_begin = begin, .block_end = begin + part_blocks}, state, input,
                                   out);
  };
  AdvanceStates(context, rows, {shape.num_heads * head_parts, part_blocks * shape.key_size * kStateColumns, step});
}

}  // namespace llmi

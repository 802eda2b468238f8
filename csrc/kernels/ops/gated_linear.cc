#include "kernels/ops/gated_linear.h"

#include <algorithm>
#include <cstring>

#include "core/errors.h"
#include "core/thread_pool.h"
#include "kernels/dispatch/device.h"
#include "kernels/dispatch/kernel_table.h"
#include "kernels/dispatch/produced_rows.h"

namespace llmi {
namespace {

// Up to this number of rows two separate layers are faster, since each of them reads its weights as one stream.
constexpr int64_t kFewRows = 15;
constexpr int64_t kRowsAtOnce = kLinearRowsInCache;
constexpr int64_t kMaxBlocks = 8;  // blocks of columns in one task
constexpr int64_t kMaxColumns = kMaxBlocks * kBlockSize;

QuantizedRows RowsFrom(const QuantizedRows& x, int64_t row) {
  const int64_t blocks = row * (x.num_cols / kBlockSize);
  return {.num_cols = x.num_cols,
          .codes = x.codes + row * x.num_cols,
          .scales = x.scales + blocks * (x.fine ? 2 : 1),
          .sums = x.sums + blocks,
          .half_sums = x.half_sums + 2 * blocks,
          .fine = x.fine,
          .low = x.low == nullptr ? nullptr : x.low + row * x.num_cols};
}

// Output columns [begin, begin + num_columns) of a layer as a layer of their own.
LinearPart ColumnsOf(const LinearPart& part, int64_t begin, int64_t num_columns) {
  LinearPart own = {.weights = part.weights, .bias = part.bias != nullptr ? part.bias + begin : nullptr};
  own.weights.data += begin / kTileRows * PackedTileBytes(part.weights.type, part.weights.num_cols);
  own.weights.num_rows = num_columns;
  return own;
}

// One task's results for some rows, before CopyColumns puts its columns next to the other tasks'.
struct Scratch {
  alignas(64) float gate[kRowsAtOnce * kMaxColumns];
  alignas(64) float up[kRowsAtOnce * kMaxColumns];
  alignas(64) float activated[kRowsAtOnce * kMaxColumns];
  alignas(64) int8_t codes[kRowsAtOnce * kMaxColumns];
  alignas(64) int8_t low[kRowsAtOnce * kMaxColumns];
  float scales[kRowsAtOnce * kMaxBlocks * 2];
  float sums[kRowsAtOnce * kMaxBlocks];
  int32_t half_sums[kRowsAtOnce * kMaxBlocks * 2];
};

template <typename T>
void CopyColumns(const T* from, int64_t num_rows, int64_t num_columns, T* to, int64_t to_stride) {
  for (int64_t row = 0; row < num_rows; ++row, from += num_columns, to += to_stride) {
    std::memcpy(to, from, static_cast<size_t>(num_columns) * sizeof(T));
  }
}

// Computes blocks [begin, begin + num_blocks) of the columns for all rows of `layers`, and stores them in the same rows of `to`.
void ComputeBlocks(const KernelTable& table, const LinearArgs& layers, const ActivationArgs& activation, const QuantizedRows& to,
                   int64_t begin, int64_t num_blocks) {
  Scratch scratch;
  const int64_t num_rows = layers.num_rows;
  const int64_t columns = num_blocks * kBlockSize;
  LinearArgs args = layers;
  args.out_stride = columns;
  args.out = scratch.gate;
  table.linear_quantized(args, ColumnsOf(layers.parts[0], begin * kBlockSize, columns), 0, columns / kTileRows);
  args.out = scratch.up;
  table.linear_quantized(args, ColumnsOf(layers.parts[1], begin * kBlockSize, columns), 0, columns / kTileRows);
  table.activate(activation, scratch.gate, scratch.up, num_rows * columns, scratch.activated);
  const QuantizedRows own = {.num_cols = columns,
                             .codes = scratch.codes,
                             .scales = scratch.scales,
                             .sums = scratch.sums,
                             .half_sums = scratch.half_sums,
                             .fine = to.fine,
                             .low = to.low == nullptr ? nullptr : scratch.low};
  table.quantize_rows(scratch.activated, 0, num_rows, own);
  const int64_t all_blocks = to.num_cols / kBlockSize;
  const int64_t scales = to.fine ? 2 : 1;
  CopyColumns(own.codes, num_rows, columns, to.codes + begin * kBlockSize, to.num_cols);
  if (to.low != nullptr) CopyColumns(own.low, num_rows, columns, to.low + begin * kBlockSize, to.num_cols);
  CopyColumns(own.scales, num_rows, scales * num_blocks, to.scales + scales * begin, scales * all_blocks);
  CopyColumns(own.sums, num_rows, num_blocks, to.sums + begin, all_blocks);
  CopyColumns(own.half_sums, num_rows, 2 * num_blocks, to.half_sums + 2 * begin, 2 * all_blocks);
}

}  // namespace

void CheckGatedLinear(const KernelContext& context, const LinearArgs& layers, const ActivationArgs& activation, const LinearInput& input) {
  CheckArgument(layers.num_parts == 2 && !layers.accumulate, "gated_linear: parts are gate and up, not added to anything");
  const int64_t size = layers.parts[0].weights.num_rows;
  CheckArgument(layers.parts[1].weights.num_rows == size && layers.out_stride == 2 * size,
                "gated_linear: gate and up have as many columns each as out");
  CheckArgument(activation.gated && activation.x == layers.out && activation.num_rows == layers.num_rows && activation.size == size,
                "gated_linear: the activation is that of gate and up");
  CheckLinear(context, layers);
  CheckInput(context, size, input);
}

// Each thread computes gate, up, activation and codes for whole blocks of 32 columns. The fp32 values (8 bytes a column for gate and up)
// stay in its own cache; other cores read the codes alone, one or two bytes a column.
void GatedLinear(const KernelContext& context, const LinearArgs& layers, const ActivationArgs& activation, const LinearInput& input) {
  CheckGatedLinear(context, layers, activation, input);
  if (context.device != nullptr) return context.device->Linear({.layers = layers, .activation = &activation, .forms = input});
  const PackedView& gate = layers.parts[0].weights;
  const PackedView& up = layers.parts[1].weights;
  const int64_t size = gate.num_rows;
  const bool in_codes = IsQuantizedPacked(gate.type) && IsQuantizedPacked(up.type) && input.quantized.codes != nullptr;
  if (!in_codes || input.rounded != nullptr || layers.num_rows <= kFewRows || context.tap != nullptr) {
    Linear(context, layers);
    return Activate(context, activation, input);
  }
  const int64_t num_blocks = size / kBlockSize;
  const int64_t per_task = std::clamp<int64_t>(num_blocks / (int64_t{12} * context.num_threads), 1, kMaxBlocks);
  context.pool->ParallelFor((num_blocks + per_task - 1) / per_task, context.num_threads, [&](int64_t task) {
    const int64_t begin = task * per_task;
    for (int64_t row = 0; row < layers.num_rows; row += kRowsAtOnce) {
      LinearArgs rows = layers;
      rows.num_rows = std::min(kRowsAtOnce, layers.num_rows - row);
      rows.quantized = RowsFrom(layers.quantized, row);
      ComputeBlocks(*context.table, rows, activation, RowsFrom(input.quantized, row), begin, std::min(per_task, num_blocks - begin));
    }
  });
}

}  // namespace llmi

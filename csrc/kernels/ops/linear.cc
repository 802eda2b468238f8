#include "kernels/ops/linear.h"

#include <algorithm>
#include <array>
#include <vector>

#include "core/errors.h"
#include "kernels/dispatch/device.h"
#include "kernels/dispatch/kernel_table.h"
#include "kernels/dispatch/row_tasks.h"
#include "kernels/ops/linear_row_tiles.h"
#include "kernels/ops/linear_rows.h"
#include "kernels/ops/linear_tap.h"

namespace llmi {
namespace {

constexpr int64_t kMaxParts = 8;

// Quantised weights: about 32 KB a task, small enough to balance two threads, large enough to stream. The size is the same for all parts,
// as threads begin with equal numbers of tasks. Float weights: a pass reads up to four tiles at a time, as four streams, and long streams
// are faster, so a task has up to 32 tiles.
int64_t TilesPerTask(const KernelContext& context, const PackedView& w, int64_t num_tiles, int64_t all_tiles) {
  const auto by_threads = [&](int64_t tiles) { return std::max<int64_t>(1, tiles / (int64_t{4} * context.num_threads)); };
  if (IsQuantizedPacked(w.type))
    return std::clamp<int64_t>(32768 / std::max<int64_t>(1, PackedTileBytes(w.type, w.num_cols)), 1, by_threads(all_tiles));
  const int64_t at_once = std::clamp<int64_t>(num_tiles / context.num_threads, 1, 4);
  return std::max(at_once, std::min<int64_t>(32, by_threads(num_tiles)));
}

void CheckPart(const KernelContext& context, const LinearArgs& args, const PackedView& w) {
  const bool quantized = IsQuantizedPacked(w.type);
  CheckInternal(context.device != nullptr || !IsRowsPacked(w.type), "linear: rows are for a device that takes them");
  CheckArgument(quantized ? args.quantized.codes != nullptr : args.x != nullptr, "linear: x is missing in the form that the weights need");
  CheckArgument(!quantized || (w.num_cols == args.quantized.num_cols && w.num_cols % PackedGroupColumns(w.type) == 0),
                "linear: column counts differ");
  CheckArgument(args.x_bf16 == nullptr || (context.device == nullptr && w.num_cols % 2 == 0), "linear: bf16 x has pairs of columns");
}

// The entries in pieces of about `share` tiles of one row, and where each task begins among the pieces: tasks have about equal shares.
std::vector<size_t> CutIntoTasks(std::span<const RowTiles> entries, int64_t share, std::vector<RowTiles>* pieces) {
  std::vector<size_t> tasks;
  int64_t room = 0;
  for (const RowTiles& entry : entries) {
    const int64_t most = std::max<int64_t>(1, share / entry.num_rows);
    for (int64_t begin = entry.tiles.begin; begin < entry.tiles.end; begin += most) {
      const TileRange tiles = {begin, std::min(entry.tiles.end, begin + most)};
      if (room <= 0) {
        tasks.push_back(pieces->size());
        room = share;
      }
      pieces->push_back({entry.row, entry.num_rows, tiles});
      room -= entry.num_rows * (tiles.end - tiles.begin);
    }
  }
  tasks.push_back(pieces->size());
  return tasks;
}

}  // namespace

void RunLinearTiles(const KernelContext& context, const LinearArgs& args, const LinearPart& part, const TileRange& tiles) {
  const KernelTable& table = *context.table;
  const bool in_pairs = args.x_bf16 != nullptr && part.weights.type == PackedType::kBF16;
  const auto of_floats = in_pairs ? table.linear_bf16 : table.linear_float;
  (IsQuantizedPacked(part.weights.type) ? table.linear_quantized : of_floats)(args, part, tiles.begin, tiles.end);
}

LinearArgs LinearOfRows(LinearArgs args, int64_t row, int64_t num_rows) {
  args.num_rows = num_rows;
  if (args.x != nullptr) args.x += row * args.x_stride;
  if (args.x_bf16 != nullptr) args.x_bf16 += row * args.parts[0].weights.num_cols;
  args.out += row * args.out_stride;
  QuantizedRows& x = args.quantized;
  if (x.codes == nullptr) return args;
  const int64_t num_blocks = row * (x.num_cols / kBlockSize);
  x.codes += num_blocks * kBlockSize;
  if (x.low != nullptr) x.low += num_blocks * kBlockSize;
  x.scales += num_blocks * (x.fine ? 2 : 1);
  x.sums += num_blocks;
  x.half_sums += num_blocks * 2;
  return args;
}

void CheckLinear(const KernelContext& context, const LinearArgs& args) {
  CheckArgument(args.num_parts >= 1 && args.num_parts <= kMaxParts, "linear: 1 to 8 parts");
  for (int64_t p = 0; p < args.num_parts; ++p) CheckPart(context, args, args.parts[p].weights);
}

void Linear(const KernelContext& context, const LinearArgs& args) {
  CheckLinear(context, args);
  std::array<int64_t, kMaxParts + 1> first_task{};
  std::array<int64_t, kMaxParts> tiles_per_task{};
  int64_t all_tiles = 0;
  for (int64_t p = 0; p < args.num_parts; ++p) all_tiles += NumTiles(args.parts[p].weights.num_rows);
  for (int64_t p = 0; p < args.num_parts; ++p) {
    const PackedView& w = args.parts[p].weights;
    const int64_t num_tiles = NumTiles(w.num_rows);
    const int64_t per_task = TilesPerTask(context, w, num_tiles, all_tiles);
    const auto index = static_cast<size_t>(p);
    tiles_per_task[index] = per_task;
    first_task[index + 1] = first_task[index] + (num_tiles + per_task - 1) / per_task;
  }
  if (context.device != nullptr) return context.device->Linear({.layers = args});
  if (context.tap != nullptr) context.tap->Take(context, args, nullptr);
  const auto num_parts = static_cast<size_t>(args.num_parts);
  context.pool->ParallelFor(first_task[num_parts], context.num_threads, [&](int64_t task) {
    size_t p = 0;
    while (task >= first_task[p + 1]) ++p;
    const LinearPart& part = args.parts[p];
    const int64_t num_tiles = NumTiles(part.weights.num_rows);
    const int64_t begin = (task - first_task[p]) * tiles_per_task[p];
    RunLinearTiles(context, args, part, {begin, std::min(num_tiles, begin + tiles_per_task[p])});
  });
}

void LinearTiles(const KernelContext& context, const LinearArgs& args, std::span<const TileRange> tiles) {
  CheckArgument(args.num_parts == 1, "linear: tiles of one part");
  if (context.device != nullptr) return Linear(context, args);
  const PackedView& w = args.parts[0].weights;
  CheckLinear(context, args);
  int64_t num_tiles = 0;
  for (const TileRange& range : tiles) num_tiles += range.end - range.begin;
  const int64_t per_task = TilesPerTask(context, w, num_tiles, num_tiles);
  std::vector<TileRange> tasks;
  for (const TileRange& range : tiles) {
    CheckArgument(0 <= range.begin && range.end <= NumTiles(w.num_rows), "linear: tiles past the last row");
    for (int64_t begin = range.begin; begin < range.end; begin += per_task) tasks.push_back({begin, std::min(range.end, begin + per_task)});
  }
  context.pool->ParallelFor(static_cast<int64_t>(tasks.size()), context.num_threads,
                            [&](int64_t task) { RunLinearTiles(context, args, args.parts[0], tasks[static_cast<size_t>(task)]); });
}

void LinearRowTiles(const KernelContext& context, const LinearArgs& args, std::span<const RowTiles> entries) {
  CheckArgument(args.num_parts == 1 && context.device == nullptr, "linear: tiles of rows are those of one part, on the CPU");
  CheckLinear(context, args);
  const PackedView& w = args.parts[0].weights;
  int64_t all_tiles = 0;
  for (const auto& [row, num_rows, tiles] : entries) {
    CheckArgument(0 <= row && 0 < num_rows && row + num_rows <= args.num_rows, "linear: tiles of rows that are not there");
    CheckArgument(0 <= tiles.begin && tiles.end <= NumTiles(w.num_rows), "linear: tiles past the last row");
    all_tiles += num_rows * (tiles.end - tiles.begin);
  }
  std::vector<RowTiles> pieces;
  const std::vector<size_t> tasks = CutIntoTasks(entries, TilesPerTask(context, w, all_tiles, all_tiles), &pieces);
  context.pool->ParallelFor(static_cast<int64_t>(tasks.size()) - 1, context.num_threads, [&](int64_t task) {
    for (size_t i = tasks[static_cast<size_t>(task)]; i < tasks[static_cast<size_t>(task) + 1]; ++i) {
      RunLinearTiles(context, LinearOfRows(args, pieces[i].row, pieces[i].num_rows), args.parts[0], pieces[i].tiles);
    }
  });
}

}  // namespace llmi

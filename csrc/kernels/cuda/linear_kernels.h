// linear: a block computes one tile of 16 output columns for up to 8 rows of x.
//
// Sums inside a block of 32 columns of W do not depend on each other (and are exact where quantised), so threads take a column
// of the tile and a block each; then 16 x 8 threads add up these sums, in the order of linear.h.
#pragma once

#include <cstddef>

#include "core/scalar_math.h"
#include "kernels/cpu/reference/packed_block.h"
#include "kernels/cuda/block.h"
#include "kernels/cuda/linear_output.h"
#include "kernels/cuda/row_codes.h"

namespace llmi::cuda {

constexpr int kLinearThreads = 128;
constexpr int kLinearRows = 8;                               // of x
constexpr int kLinearBlocks = kLinearThreads / kTileRows;    // of 32 columns, at a time
constexpr int kLinearSums = kLinearBlocks * kLinearThreads;  // block sums at a time: [block][row][column]
static_assert(kLinearRows * kTileRows == kLinearThreads);

// x for float weights.
struct FloatRows {
  using BlockSum = float;
  const float* x;
  int64_t x_stride;

  template <typename Visit>
  void ForEachPointer(const Visit& visit) const {
    visit(x);
  }

  // to[row][column of the tile]: sums of block `index` of one column of W, for rows [first_row, end_row) of x.
  LLMI_HD void SumBlock(const PackedView& w, const uint8_t* tile, int64_t column, int64_t index, int64_t first_row, int64_t end_row,
                        float* to) const {
    const int64_t begin = index * kBlockSize;
    const int64_t end = begin + kBlockSize < w.num_cols ? begin + kBlockSize : w.num_cols;
    float results[kLinearRows] = {};
    for (int64_t k = begin; k < end; ++k) {
      const float weight = reference::FloatWeight(w.type, tile, k, column);
      for (int row = 0; row < kLinearRows; ++row) {
        if (first_row + row < end_row) results[row] = Fma(weight, x[(first_row + row) * x_stride + k], results[row]);
      }
    }
    for (int row = 0; row < kLinearRows; ++row) to[row * kTileRows] = results[row];
  }
  LLMI_HD static float Add(PackedType, float total, float sum) { return total + sum; }
};

// x for quantised weights.
struct Int8Rows {
  // acc = fma(a[0], b[0], acc), then, where there are two, acc = fma(a[1], b[1], acc).
  struct BlockSum {
    float a[2];
    float b[2];
  };
  QuantizedRows x;

  template <typename Visit>
  void ForEachPointer(const Visit& visit) const {
    VisitPointers(x, visit);
  }

  LLMI_HD void SumBlock(const PackedView& w, const uint8_t* tile, int64_t column, int64_t index, int64_t first_row, int64_t end_row,
                        BlockSum* to) const {
    const reference::PackedRow row_of_w = reference::RowOf(w, tile, column);
    uint32_t codes[8];
    for (int group = 0; group < 8; ++group) codes[group] = LoadWord(row_of_w, index, group);
    const BlockScales block = ScalesOf(row_of_w, index);
    for (int row = 0; row < kLinearRows && first_row + row < end_row; ++row) {
      to[row * kTileRows] = Sum(w.type, block, codes, (first_row + row) * (w.num_cols / kBlockSize) + index);
    }
  }
  LLMI_HD static float Add(PackedType type, float total, const BlockSum& sum) {
    total = Fma(sum.a[0], sum.b[0], total);
    const bool two = HasHalfScalesPacked(type) || HasMinimumPacked(type);
    return two ? Fma(sum.a[1], sum.b[1], total) : total;
  }

  // Codes of columns 4 group to 4 group + 3 of a block as signed bytes: what a table has for them, those of 8 bits less 128, others as
  // they are.
  LLMI_HD static uint32_t LoadWord(const reference::PackedRow& row, int64_t index, int group) {
    const uint32_t word = row.CodeWord(index, group);
    if (IsTablePacked(row.type)) {
      uint32_t levels = 0;
      for (int i = 0; i < 4; ++i) levels |= (static_cast<uint32_t>(row.table[word >> (8 * i) & 15]) & 255u) << (8 * i);
      return levels;
    }
    return PackedLowBits(row.type) == 8 ? word ^ 0x80808080u : word;
  }

  // What a block of weights is multiplied with: a scale and a minimum for all columns, or for each half of them.
  struct BlockScales {
    float scales[2];
    float minima[2];
  };
  LLMI_HD static BlockScales ScalesOf(const reference::PackedRow& row, int64_t index) {
    const bool halves = HasHalfScalesPacked(row.type);
    BlockScales block = {{row.Scale(index, 0), 0.0f}, {0.0f, 0.0f}};
    if (halves) block.scales[1] = row.Scale(index, 1);
    if (row.HasMinimum()) block.minima[0] = row.Minimum(index, 0);
    if (row.HasMinimum() && halves) block.minima[1] = row.Minimum(index, 1);
    return block;
  }

  LLMI_HD static BlockSum CoarseSum(PackedType type, const BlockScales& block, const int32_t* dots, float x_scale) {
    if (HasHalfScalesPacked(type)) {
      return {{static_cast<float>(dots[0]), static_cast<float>(dots[1])}, {block.scales[0] * x_scale, block.scales[1] * x_scale}};
    }
    return {{static_cast<float>(dots[0] + dots[1]), 0.0f}, {block.scales[0] * x_scale, 0.0f}};
  }
  LLMI_HD static BlockSum FineSum(PackedType type, const BlockScales& block, const int32_t* dots, const float* x_scales) {
    const float first = static_cast<float>(dots[0]) * x_scales[0];
    if (HasHalfScalesPacked(type)) {
      return {{first, static_cast<float>(dots[1]) * x_scales[1]}, {block.scales[0], block.scales[1]}};
    }
    return {{Fma(static_cast<float>(dots[1]), x_scales[1], first), 0.0f}, {block.scales[0], 0.0f}};
  }
  // The sum of a block with minima for each 16 columns.
  LLMI_HD BlockSum SumWithHalfMinima(const BlockScales& block, const int32_t* dots, int64_t x_block) const {
    BlockSum sum;
    for (int half = 0; half < 2; ++half) {
      const float scaled = static_cast<float>(dots[half]) * block.scales[half];
      sum.a[half] = Fma(block.minima[half], static_cast<float>(x.half_sums[2 * x_block + half]), scaled);
      sum.b[half] = x.fine ? x.scales[2 * x_block + half] : x.scales[x_block];
    }
    return sum;
  }

  // dots of the block's halves, added to what they hold.
  LLMI_HD static void AddDots(const uint32_t* codes, const int8_t* x_bytes, int32_t* dots) {
    const uint32_t* x_codes = reinterpret_cast<const uint32_t*>(x_bytes);
    for (int group = 0; group < 8; ++group) dots[group / 4] = DotOfFour(codes[group], x_codes[group], dots[group / 4]);
  }

  LLMI_HD BlockSum Sum(PackedType type, const BlockScales& block, const uint32_t* codes, int64_t x_block) const {
    int32_t dots[2] = {0, 0};
    AddDots(codes, x.codes + x_block * kBlockSize, dots);
    if (x.low != nullptr) {
      for (int32_t& dot : dots) dot *= 256;
      AddDots(codes, x.low + x_block * kBlockSize, dots);
    }
    return FromDots(type, block, dots, x_block);
  }

  // From the dots of the block's halves, with codes as LoadWord has them.
  LLMI_HD BlockSum FromDots(PackedType type, const BlockScales& block, const int32_t* code_dots, int64_t x_block) const {
    int32_t dots[2] = {code_dots[0], code_dots[1]};
    const int32_t offset = PackedLowBits(type) == 8 ? 0 : PackedOffset(type);
    if (offset != 0) {
      for (int half = 0; half < 2; ++half) dots[half] -= offset * x.half_sums[2 * x_block + half];
    }
    if (HasMinimumPacked(type) && HasHalfScalesPacked(type)) return SumWithHalfMinima(block, dots, x_block);
    BlockSum sum = x.fine ? FineSum(type, block, dots, x.scales + 2 * x_block) : CoarseSum(type, block, dots, x.scales[x_block]);
    if (HasMinimumPacked(type)) {
      sum.a[1] = block.minima[0];
      sum.b[1] = x.sums[x_block];
    }
    return sum;
  }
};

// Rows [first_row, first_row + kLinearRows) of x, as far as there are so many, and a tile of W.
template <typename Block, typename Rows>
LLMI_HD void LinearTile(const Block& block, const LinearOutput& output, const TileOutput& tile, const Rows& rows, int64_t first_row) {
  using BlockSum = typename Rows::BlockSum;
  const PackedView& w = output.weights;
  const int64_t num_blocks = (w.num_cols + kBlockSize - 1) / kBlockSize;
  float* totals = reinterpret_cast<float*>(block.shared);
  BlockSum* sums = reinterpret_cast<BlockSum*>(totals + kLinearThreads);
  block.Streams(PackedTileBytes(w.type, w.num_cols));
  block.ForEachThread([&](int thread) { totals[thread] = 0.0f; });
  for (int64_t first = 0; first < num_blocks; first += kLinearBlocks) {
    block.ForEachThread([&](int thread) {
      const int64_t index = first + thread / kTileRows;
      if (index >= num_blocks) return;
      BlockSum* to = sums + thread / kTileRows * kLinearThreads + thread % kTileRows;
      rows.SumBlock(w, tile.weights, thread % kTileRows, index, first_row, output.num_rows, to);
    });
    block.ForEachThread([&](int thread) {
      if (first_row + thread / kTileRows >= output.num_rows) return;
      float total = totals[thread];
      for (int64_t i = 0; i < kLinearBlocks && first + i < num_blocks; ++i) {
        total = Rows::Add(w.type, total, sums[i * kLinearThreads + thread]);
      }
      totals[thread] = total;
    });
  }
  block.ForEachThread([&](int thread) {
    output.Store(tile, static_cast<int>(first_row) + thread / static_cast<int>(kTileRows), thread % static_cast<int>(kTileRows),
                 totals[thread]);
  });
}

// Block x: 8 rows of x; y: a tile of W, so that blocks that run side by side share it.
template <typename Rows>
struct LinearKernel {
  static constexpr size_t kSharedBytes = kLinearThreads * sizeof(float) + kLinearSums * sizeof(typename Rows::BlockSum);
  LinearOutput output;
  Rows rows;

  template <typename Visit>
  void ForEachPointer(const Visit& visit) const {
    output.ForEachPointer(visit);
    rows.ForEachPointer(visit);
  }

  template <typename Block>
  LLMI_HD void operator()(const Block& block) const {
    const TileOutput tile = output.Tile(static_cast<int>(block.y), PackedTileBytes(output.weights.type, output.weights.num_cols));
    LinearTile(block, output, tile, rows, block.x * kLinearRows);
  }
};

}  // namespace llmi::cuda

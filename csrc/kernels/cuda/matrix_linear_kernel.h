// linear for many rows of x and quantised weights, by the matrix instruction. A warp computes one tile of 16 output columns for
// up to 64 rows of x: each block of 32 columns of W is A of two multiply-adds, 16 columns of W each, with 8 rows of x as B.
// The dots are integers, so they are those of linear_kernels.h; a lane then adds up what its outputs get, block by block, in the
// order of linear.h.
#pragma once

#include "kernels/cuda/linear_kernels.h"
#include "kernels/cuda/warp.h"

namespace llmi::cuda {

constexpr int kMatrixWarps = 4;    // in a block, a tile each
constexpr int kMatrixColumns = 8;  // rows of x in one multiply-add
constexpr int kMatrixGroups = 8;   // of that many, one after the other, so that W's codes are unpacked once for all
constexpr int kMatrixRows = kMatrixColumns * kMatrixGroups;

// Block x: 64 rows of x; y: four tiles of W.
struct MatrixLinearKernel {
  LinearOutput output;
  Int8Rows rows;

  template <typename Visit>
  void ForEachPointer(const Visit& visit) const {
    output.ForEachPointer(visit);
    rows.ForEachPointer(visit);
  }

  template <typename Block>
  LLMI_HD void operator()(const Block& block) const {
    block.ForEachWarp([&](const auto& warp) {
      const int index = static_cast<int>(block.y) * kMatrixWarps + warp.index;
      if (index >= output.num_tiles) return;
      const int64_t tile_bytes = PackedTileBytes(output.weights.type, output.weights.num_cols);
      block.Streams(tile_bytes);
      ComputeTile(warp, output.Tile(index, tile_bytes), block.x * kMatrixRows);
    });
  }

 private:
  struct LaneScales {
    Int8Rows::BlockScales of[2];  // of the two rows of the tile whose sums the lane has
  };
  struct Totals {
    float values[kMatrixGroups][4];
  };

  template <typename Warp>
  LLMI_HD void ComputeTile(const Warp& warp, const TileOutput& tile, int64_t first_row) const {
    const PackedView& w = output.weights;
    const int64_t num_blocks = w.num_cols / kBlockSize;
    typename Warp::template PerLane<Totals> totals;
    for (int64_t index = 0; index < num_blocks; ++index) {
      typename Warp::template PerLane<MatrixA> first_half;
      typename Warp::template PerLane<MatrixA> second_half;
      typename Warp::template PerLane<LaneScales> scales;
      warp.ForEachLane([&](int lane) {
        LoadWeights(w, tile.weights, index, lane, &first_half[lane], &second_half[lane]);
        LLMI_UNROLL
        for (int half = 0; half < 2; ++half) {
          scales[lane].of[half] = Int8Rows::ScalesOf(reference::RowOf(w, tile.weights, MatrixRow(lane, 2 * half)), index);
        }
      });
      LLMI_UNROLL
      for (int group = 0; group < kMatrixGroups; ++group) {
        const int64_t group_row = first_row + group * kMatrixColumns;
        if (group_row < output.num_rows) {
          typename Warp::template PerLane<uint32_t> x_first;
          typename Warp::template PerLane<uint32_t> x_second;
          typename Warp::template PerLane<MatrixD> dots_first;
          typename Warp::template PerLane<MatrixD> dots_second;
          const auto multiply = [&](const int8_t* codes) {
            warp.ForEachLane(
                [&](int lane) { LoadRow(codes, group_row + lane / 4, num_blocks, index, lane % 4, &x_first[lane], &x_second[lane]); });
            warp.MultiplyAdd(first_half, x_first, dots_first);
            warp.MultiplyAdd(second_half, x_second, dots_second);
          };
          multiply(rows.x.codes);
          if (rows.x.low != nullptr) {
            warp.ForEachLane([&](int lane) {
              LLMI_UNROLL
              for (int i = 0; i < 4; ++i) {
                dots_first[lane].values[i] *= 256;
                dots_second[lane].values[i] *= 256;
              }
            });
            multiply(rows.x.low);
          }
          warp.ForEachLane([&](int lane) {
            LLMI_UNROLL
            for (int i = 0; i < 4; ++i) {
              const int64_t row = group_row + MatrixColumn(lane, i);
              if (row >= output.num_rows) continue;
              const int32_t dots[2] = {dots_first[lane].values[i], dots_second[lane].values[i]};
              float& total = totals[lane].values[group][i];
              total = Int8Rows::Add(w.type, total, rows.FromDots(w.type, scales[lane].of[i / 2], dots, row * num_blocks + index));
            }
          });
        }
      }
    }
    warp.ForEachLane([&](int lane) {
      LLMI_UNROLL
      for (int group = 0; group < kMatrixGroups; ++group) {
        LLMI_UNROLL
        for (int i = 0; i < 4; ++i) {
          output.Store(tile, static_cast<int>(first_row) + group * kMatrixColumns + MatrixColumn(lane, i), MatrixRow(lane, i),
                       totals[lane].values[group][i]);
        }
      }
    });
  }

  // A lane's part of a block: words of four columns, of two rows of the tile, for each half of the block.
  LLMI_HD static void LoadWeights(const PackedView& w, const uint8_t* tile, int64_t index, int lane, MatrixA* first, MatrixA* second) {
    LLMI_UNROLL
    for (int half = 0; half < 2; ++half) {
      const reference::PackedRow row = reference::RowOf(w, tile, lane / 4 + 8 * half);
      first->rows[half] = Int8Rows::LoadWord(row, index, lane % 4);
      second->rows[half] = Int8Rows::LoadWord(row, index, lane % 4 + 4);
    }
  }

  // Four columns of each half of a block of x, of its codes or low bytes; zero past the last row.
  LLMI_HD void LoadRow(const int8_t* codes, int64_t row, int64_t num_blocks, int64_t index, int word, uint32_t* first,
                       uint32_t* second) const {
    if (row >= output.num_rows) return;
    const uint32_t* words = reinterpret_cast<const uint32_t*>(codes + (row * num_blocks + index) * kBlockSize);
    *first = words[word];
    *second = words[word + 4];
  }
};

}  // namespace llmi::cuda

// linear for weights of 16 bits on tensor cores: x is rounded to their format, products are exact, sums are fp32 in an order of the GPU's
// own, so this has a numerics id of its own (DeviceOptions::bf16_linear, f16_linear).
//
// What does not depend on the number of rows: the instruction (16 columns of 16 rows of W, on its M side, with 8 rows of x), the order of
// its calls inside a chunk of 128 columns, from zero, and the order in which the chunks' sums are added up. Its outputs do not depend on
// each other, so a row of x has the same bits in any company.
#pragma once

#include <cstddef>

#include "kernels/cuda/block.h"
#include "kernels/cuda/half_format.h"
#include "kernels/cuda/linear_kernels.h"
#include "kernels/cuda/warp.h"

namespace llmi::cuda {

constexpr int kHalfWarps = 8;
constexpr int kHalfColumns = 16;  // of W in one instruction
constexpr int kHalfStage = 64;    // of W that are read before they are used
constexpr int kHalfChunk = 128;   // columns whose sum begins at zero
constexpr int kHalfRows = 8;      // of x in one instruction: a group
static_assert(kHalfWarps <= kMostWarps);

// The common part of both kernels.
template <HalfFormat F>
struct HalfLinear {
  LinearOutput output;
  FloatRows rows;

  template <typename Visit>
  void ForEachPointer(const Visit& visit) const {
    output.ForEachPointer(visit);
    rows.ForEachPointer(visit);
  }

  LLMI_HD TileOutput Tile(int64_t index) const { return output.Tile(static_cast<int>(index), TileBytes()); }
  LLMI_HD static const uint32_t* WordsOf(const TileOutput& tile) { return reinterpret_cast<const uint32_t*>(tile.weights); }
  LLMI_HD int64_t TileBytes() const { return PackedTileBytes(output.weights.type, output.weights.num_cols); }
  // Columns k and k + 1 of a row of x, as one word; zero where there are none.
  LLMI_HD uint32_t TwoOfX(int64_t row, int64_t k) const { return OneOfX(row, k) | (OneOfX(row, k + 1) << 16); }

  // Adds up to 64 columns of W from `begin` on to sums, group by group; load_x(group, k, lane) gives a lane's part of 16 columns of x. The
  // weights are loaded before the first is used.
  template <int kGroups, typename Warp, typename LoadX>
  LLMI_HD void AddColumns(const Warp& warp, const uint32_t* tile, int64_t begin, int64_t num_rows, const LoadX& load_x,
                          typename Warp::template PerLane<HalfMatrixD>* sums) const {
    constexpr int kSteps = kHalfStage / kHalfColumns;
    typename Warp::template PerLane<HalfMatrixA> weights[kSteps];
    LLMI_UNROLL
    for (int step = 0; step < kSteps; ++step) {
      warp.ForEachLane([&](int lane) { weights[step][lane] = LoadWeights(tile, begin + step * kHalfColumns, lane); });
    }
    LLMI_UNROLL
    for (int step = 0; step < kSteps; ++step) {
      const int64_t k = begin + step * kHalfColumns;
      if (k >= output.weights.num_cols) break;
      LLMI_UNROLL
      for (int group = 0; group < kGroups; ++group) {
        if (group * kHalfRows >= num_rows) break;
        typename Warp::template PerLane<HalfMatrixB> x;
        warp.ForEachLane([&](int lane) { x[lane] = load_x(group, k, lane); });
        warp.template MultiplyAdd<F>(weights[step], x, sums[group]);
      }
    }
  }

  // The row of the tile to which D's value i in a lane belongs.
  LLMI_HD static int TileRow(int lane, int i) { return lane / 4 * 2 + i / 2; }

 private:
  // A lane's part of 16 columns from k on. A word of W is a column of two rows of the tile: row 2 r is the instruction's row r,
  // row 2 r + 1 its row r + 8.
  LLMI_HD HalfMatrixA LoadWeights(const uint32_t* tile, int64_t k, int lane) const {
    uint32_t words[4];
    for (int i = 0; i < 4; ++i) {
      const int64_t column = k + lane % 4 * 2 + i % 2 + i / 2 * 8;
      words[i] = column < output.weights.num_cols ? tile[column * (kTileRows / 2) + lane / 4] : 0;
    }
    HalfMatrixA a;
    for (int i = 0; i < 2; ++i) {
      a.words[2 * i] = (words[2 * i] & 0xFFFFu) | (words[2 * i + 1] << 16);
      a.words[2 * i + 1] = (words[2 * i] >> 16) | (words[2 * i + 1] & 0xFFFF0000u);
    }
    return a;
  }
  LLMI_HD uint32_t OneOfX(int64_t row, int64_t k) const {
    return row < output.num_rows && k < output.weights.num_cols ? RoundedTo<F>(rows.x[row * rows.x_stride + k]) : 0u;
  }
};

// For up to 32 rows of x. Block y: a tile of W, whose chunks go to the warps in rotation.
template <HalfFormat F>
struct HalfSplitKernel {
  static constexpr int kGroups = 4;
  static constexpr int kRows = kGroups * kHalfRows;
  static constexpr int kOutputs = kRows * kTileRows;
  static constexpr size_t kSharedBytes = (1 + kHalfWarps) * kOutputs * sizeof(float);
  HalfLinear<F> linear;

  template <typename Visit>
  void ForEachPointer(const Visit& visit) const {
    linear.ForEachPointer(visit);
  }

  template <typename Block>
  LLMI_HD void operator()(const Block& block) const {
    const TileOutput output = linear.Tile(block.y);
    const uint32_t* tile = HalfLinear<F>::WordsOf(output);
    const int64_t num_chunks = (linear.output.weights.num_cols + kHalfChunk - 1) / kHalfChunk;
    float* totals = reinterpret_cast<float*>(block.shared);  // [row of x][row of the tile]
    float* sums = totals + kOutputs;                         // of each warp's chunk
    block.Streams(linear.TileBytes());
    block.ForEachThread([&](int thread) {
      for (int i = thread; i < kOutputs; i += block.num_threads) totals[i] = 0.0f;
    });
    for (int64_t first = 0; first < num_chunks; first += kHalfWarps) {
      block.ForEachWarp([&](const auto& warp) {
        if (first + warp.index < num_chunks) SumChunk(warp, tile, (first + warp.index) * kHalfChunk, sums + warp.index * kOutputs);
      });
      block.Barrier();
      block.ForEachThread([&](int thread) {
        for (int i = thread; i < kOutputs && i / kTileRows < linear.output.num_rows; i += block.num_threads) {
          float total = totals[i];
          for (int64_t c = 0; c < kHalfWarps && first + c < num_chunks; ++c) total = total + sums[c * kOutputs + i];
          totals[i] = total;
        }
      });
    }
    block.ForEachThread([&](int thread) {
      for (int i = thread; i < kOutputs; i += block.num_threads) {
        linear.output.Store(output, i / static_cast<int>(kTileRows), i % static_cast<int>(kTileRows), totals[i]);
      }
    });
  }

 private:
  template <typename Warp>
  LLMI_HD void SumChunk(const Warp& warp, const uint32_t* tile, int64_t begin, float* to) const {
    typename Warp::template PerLane<HalfMatrixD> sums[kGroups];
    const auto load_x = [&](int group, int64_t k, int lane) -> HalfMatrixB {
      const int64_t row = group * kHalfRows + lane / 4;
      return {{linear.TwoOfX(row, k + lane % 4 * 2), linear.TwoOfX(row, k + lane % 4 * 2 + 8)}};
    };
    for (int64_t k = begin; k < begin + kHalfChunk && k < linear.output.weights.num_cols; k += kHalfStage) {
      linear.template AddColumns<kGroups>(warp, tile, k, linear.output.num_rows, load_x, sums);
    }
    warp.ForEachLane([&](int lane) {
      LLMI_UNROLL
      for (int group = 0; group < kGroups; ++group) {
        for (int i = 0; i < 4; ++i) {
          to[(group * kHalfRows + MatrixColumn(lane, i)) * kTileRows + HalfLinear<F>::TileRow(lane, i)] = sums[group][lane].values[i];
        }
      }
    });
  }
};

// For more than 32 rows of x. Block x: 64 rows of x, which its warps share as bf16, 64 columns at a time; y: eight tiles of W.
template <HalfFormat F>
struct HalfTileKernel {
  static constexpr int kGroups = 8;
  static constexpr int kRows = kGroups * kHalfRows;
  static constexpr int kRowWords = kHalfStage / 2 + 4;   // of two columns; the lanes that read at once find a bank each
  static constexpr int kStageWords = kRows * kRowWords;  // two stages: one is filled while slow warps read the other
  static constexpr size_t kSharedBytes = 2 * kStageWords * sizeof(uint32_t);
  static_assert(kHalfChunk % (2 * kHalfStage) == 0);
  HalfLinear<F> linear;

  template <typename Visit>
  void ForEachPointer(const Visit& visit) const {
    linear.ForEachPointer(visit);
  }

  template <typename Block>
  LLMI_HD void operator()(const Block& block) const {
    using Warp = typename Block::Warp;
    const PackedView& w = linear.output.weights;
    const int64_t first_row = block.x * kRows;
    typename Block::template PerWarp<Sums<Warp>> totals;
    block.ForEachWarp([&](const Warp& warp) {
      if (TileOf(block, warp) < linear.output.num_tiles) block.Streams(linear.TileBytes());
    });
    for (int64_t chunk = 0; chunk < w.num_cols; chunk += kHalfChunk) {
      typename Block::template PerWarp<Sums<Warp>> sums;
      for (int64_t begin = chunk; begin < chunk + kHalfChunk && begin < w.num_cols; begin += kHalfStage) {
        uint32_t* x_words = reinterpret_cast<uint32_t*>(block.shared) + (begin / kHalfStage % 2 == 0 ? 0 : kStageWords);
        block.ForEachThread([&](int thread) {
          for (int i = thread; i < kRows * kHalfStage / 2; i += block.num_threads) {
            const int row = i / (kHalfStage / 2);
            const int word = i % (kHalfStage / 2);
            x_words[row * kRowWords + word] = linear.TwoOfX(first_row + row, begin + 2 * word);
          }
        });
        block.ForEachWarp([&](const Warp& warp) { AddStage(warp, TileOf(block, warp), begin, first_row, x_words, &sums[warp]); });
      }
      block.ForEachWarp([&](const Warp& warp) {
        warp.ForEachLane([&](int lane) {
          LLMI_UNROLL
          for (int group = 0; group < kGroups; ++group) {
            for (int i = 0; i < 4; ++i) {
              float& total = totals[warp].groups[group][lane].values[i];
              total = total + sums[warp].groups[group][lane].values[i];
            }
          }
        });
      });
    }
    block.ForEachWarp([&](const Warp& warp) {
      if (TileOf(block, warp) >= linear.output.num_tiles) return;
      const TileOutput output = linear.Tile(TileOf(block, warp));
      warp.ForEachLane([&](int lane) {
        LLMI_UNROLL
        for (int group = 0; group < kGroups; ++group) {
          for (int i = 0; i < 4; ++i) {
            linear.output.Store(output, static_cast<int>(first_row) + group * kHalfRows + MatrixColumn(lane, i),
                                HalfLinear<F>::TileRow(lane, i), totals[warp].groups[group][lane].values[i]);
          }
        }
      });
    });
  }

 private:
  template <typename Warp>
  struct Sums {
    typename Warp::template PerLane<HalfMatrixD> groups[kGroups];
  };

  template <typename Block, typename Warp>
  LLMI_HD static int64_t TileOf(const Block& block, const Warp& warp) {
    return block.y * kHalfWarps + warp.index;
  }

  template <typename Warp>
  LLMI_HD void AddStage(const Warp& warp, int64_t tile_index, int64_t begin, int64_t first_row, const uint32_t* x_words,
                        Sums<Warp>* sums) const {
    if (tile_index >= linear.output.num_tiles) return;
    const auto load_x = [&](int group, int64_t k, int lane) -> HalfMatrixB {
      const uint32_t* words = x_words + (group * kHalfRows + lane / 4) * kRowWords + (k - begin) / 2 + lane % 4;
      return {{words[0], words[4]}};
    };
    linear.template AddColumns<kGroups>(warp, HalfLinear<F>::WordsOf(linear.Tile(tile_index)), begin, linear.output.num_rows - first_row,
                                        load_x, sums->groups);
  }
};

}  // namespace llmi::cuda

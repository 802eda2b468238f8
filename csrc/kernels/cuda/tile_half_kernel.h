// linear for weights of 16 bits on tensor cores, for prompts: the sums of StreamHalfKernel, bit for bit, a block for each tile of outputs
// and 128 rows of x.
//
// Weights and fragments of x come through a ring in shared memory, 32 columns at a time, by asynchronous copies that run three stages
// ahead. The warps share the tile: each has 32 rows of x and a half of the outputs, in registers.
#pragma once

#include <cstddef>

#include "kernels/cuda/async_copy.h"
#include "kernels/cuda/half_fragments.h"
#include "kernels/cuda/linear_output.h"
#include "kernels/cuda/stream_half_kernel.h"
#include "kernels/cuda/warp.h"
#include "kernels/layout/float_chunks.h"

namespace llmi::cuda {

constexpr int kHalfTileRows = 128;  // of x

// Block x: 128 rows of x; y: 32 kWarpTiles outputs.
template <HalfFormat F, int kWarpTiles>
struct TileHalfKernel {
  static constexpr int kMostRegisters = kWarpTiles == 4 ? 224 : 128;
  static constexpr int kThreads = kMostWarps * kWarpLanes;
  static constexpr int kBlockTiles = 2 * kWarpTiles;
  static constexpr int kSets = kHalfTileRows / (static_cast<int>(kFragmentGroups) * kHalfRows);  // of x, one for each two warps
  static constexpr int kStages = 4;
  static constexpr int kStageSteps = kFragmentColumns / kHalfColumns;
  static constexpr int kChunkStages = kHalfChunk / kFragmentColumns;
  static constexpr int kTileBytes = kStageSteps * kFloatPieceBytes;  // of a stage
  static constexpr int kSetBytes = kFragmentGroups * kFragmentBytes;
  static constexpr int kWeightBytes = kBlockTiles * kTileBytes;
  static constexpr int kStageBytes = kWeightBytes + kSets * kSetBytes;
  static constexpr size_t kSharedBytes = size_t{kStages} * kStageBytes;
  static_assert(kMostWarps == 2 * kSets);

  LinearOutput output;
  const uint8_t* fragments;

  template <typename Visit>
  void ForEachPointer(const Visit& visit) const {
    output.ForEachPointer(visit);
    visit(fragments);
  }

  template <typename Block>
  LLMI_HD void operator()(const Block& block) const {
    using Warp = typename Block::Warp;
    const auto num_stages = static_cast<int>(NumFragments(output.weights.num_cols));
    const int64_t first_tile = block.y * kBlockTiles;
    const int64_t tiles_left = output.num_tiles - first_tile;
    block.Streams((tiles_left < kBlockTiles ? tiles_left : kBlockTiles) * NumSteps() * kFloatPieceBytes);
    typename Block::template PerWarp<typename Warp::template PerLane<Sources>> sources;
    block.ForEachWarp([&](const Warp& warp) {
      warp.ForEachLane(
          [&](int lane) { sources[warp][lane] = FindSources(block.x, static_cast<int>(first_tile), warp.index * kWarpLanes + lane); });
    });
    AsyncCopies<Block> copies;
    const auto copy = [&](int stage) {
      block.ForEachWarp([&](const Warp& warp) {
        warp.ForEachLane([&](int lane) { CopyStage(sources[warp][lane], stage, warp.index * kWarpLanes + lane, block.shared, &copies); });
      });
      copies.Commit();
    };
    for (int stage = 0; stage < kStages - 1; ++stage) copy(stage);
    typename Block::template PerWarp<Sums<Warp>> totals;
    for (int chunk = 0; chunk < num_stages; chunk += kChunkStages) {
      typename Block::template PerWarp<Sums<Warp>> sums;
      for (int stage = chunk; stage < chunk + kChunkStages && stage < num_stages; ++stage) {
        copies.template Wait<kStages - 2>();
        block.Barrier();  // all copies of this stage are seen, and the one before it is used
        copy(stage + kStages - 1);
        block.ForEachWarp([&](const Warp& warp) {
          Multiply(warp, block.shared + stage % kStages * kStageBytes, NumSteps() - stage * kStageSteps, &sums[warp]);
        });
      }
      block.ForEachWarp([&](const Warp& warp) { Add(warp, sums[warp], &totals[warp]); });
    }
    block.ForEachWarp(
        [&](const Warp& warp) { Store(warp, totals[warp], static_cast<int>(block.x) * kHalfTileRows, static_cast<int>(first_tile)); });
  }

 private:
  template <typename Warp>
  struct Sums {
    typename Warp::template PerLane<HalfMatrixD> of[kWarpTiles][kFragmentGroups];
  };

  LLMI_HD int NumSteps() const { return static_cast<int>((output.weights.num_cols + kHalfColumns - 1) / kHalfColumns); }

  // Where a thread's copies of the first stage come from; null: there is nothing.
  struct Sources {
    const uint8_t* weights[kWeightBytes / 16 / kThreads];
    const uint8_t* x[kSets * kSetBytes / 16 / kThreads];
  };
  LLMI_HD Sources FindSources(int64_t block_x, int first_tile, int thread) const {
    Sources found;
    LLMI_UNROLL
    for (int i = 0; i < kWeightBytes / 16; i += kThreads) {
      const int tile = first_tile + (i + thread) / (kTileBytes / 16);
      const uint8_t* from = tile < output.num_tiles ? output.Tile(tile, int64_t{NumSteps()} * kFloatPieceBytes).weights : nullptr;
      found.weights[i / kThreads] = from != nullptr ? from + (i + thread) % (kTileBytes / 16) * 16 : nullptr;
    }
    LLMI_UNROLL
    for (int i = 0; i < kSets * kSetBytes / 16; i += kThreads) {
      const int64_t set = block_x * kSets + (i + thread) / (kSetBytes / 16);
      const uint8_t* from = fragments + (set * FragmentSetBytes(output.weights.num_cols) + (i + thread) % (kSetBytes / 16) * 16);
      found.x[i / kThreads] = set < NumFragmentSets(output.num_rows) ? from : nullptr;
    }
    return found;
  }
  // A thread's part. What is not there is not copied: sums of other rows do not depend on it.
  template <typename Copies>
  LLMI_HD void CopyStage(const Sources& from, int stage, int thread, uint8_t* shared, Copies* copies) const {
    uint8_t* to = shared + stage % kStages * kStageBytes;
    LLMI_UNROLL
    for (int i = 0; i < kWeightBytes / 16; i += kThreads) {
      const int piece = stage * kStageSteps + (i + thread) % (kTileBytes / 16) * 16 / kFloatPieceBytes;
      const uint8_t* weights = from.weights[i / kThreads];
      copies->Copy(to + (i + thread) * 16, weights + int64_t{stage} * kTileBytes, weights != nullptr && piece < NumSteps());
    }
    LLMI_UNROLL
    for (int i = 0; i < kSets * kSetBytes / 16; i += kThreads) {
      const uint8_t* x = from.x[i / kThreads];
      const bool wanted = x != nullptr && stage < NumFragments(output.weights.num_cols);
      copies->Copy(to + kWeightBytes + (i + thread) * 16, x + int64_t{stage} * kSetBytes, wanted);
    }
  }

  template <typename Warp>
  LLMI_HD static void Multiply(const Warp& warp, const uint8_t* stage, int steps_left, Sums<Warp>* sums) {
    const uint8_t* weights = stage + warp.index % 2 * (kWarpTiles * kTileBytes);
    const uint8_t* x_set = stage + kWeightBytes + warp.index / 2 * kSetBytes;
    typename Warp::template PerLane<FourWords> x[kFragmentGroups];
    LLMI_UNROLL
    for (unsigned group = 0; group < kFragmentGroups; ++group) {
      warp.ForEachLane([&](int lane) { x[group][lane] = *reinterpret_cast<const FourWords*>(x_set + group * kFragmentBytes + lane * 16); });
    }
    LLMI_UNROLL
    for (int step = 0; step < kStageSteps; ++step) {
      if (step >= steps_left) break;
      LLMI_UNROLL
      for (int tile = 0; tile < kWarpTiles; ++tile) {
        typename Warp::template PerLane<HalfMatrixA> rows;
        const uint8_t* piece = weights + tile * kTileBytes + step * kFloatPieceBytes;
        warp.ForEachLane([&](int lane) { rows[lane] = LoadWeights(piece, lane); });
        LLMI_UNROLL
        for (unsigned group = 0; group < kFragmentGroups; ++group) {
          typename Warp::template PerLane<HalfMatrixB> columns;
          warp.ForEachLane([&](int lane) { columns[lane] = {{x[group][lane].words[2 * step], x[group][lane].words[2 * step + 1]}}; });
          warp.template MultiplyAdd<F>(rows, columns, sums->of[tile][group]);
        }
      }
    }
  }

  template <typename Warp>
  LLMI_HD static void Add(const Warp& warp, const Sums<Warp>& sums, Sums<Warp>* totals) {
    warp.ForEachLane([&](int lane) {
      LLMI_UNROLL
      for (int i = 0; i < kWarpTiles * static_cast<int>(kFragmentGroups) * 4; ++i) {
        const int tile = i / 16;
        float& total = totals->of[tile][i / 4 % 4][lane].values[i % 4];
        total = total + sums.of[tile][i / 4 % 4][lane].values[i % 4];
      }
    });
  }

  template <typename Warp>
  LLMI_HD void Store(const Warp& warp, const Sums<Warp>& totals, int first_row, int first_tile) const {
    LLMI_UNROLL
    for (int t = 0; t < kWarpTiles; ++t) {
      const int index = first_tile + warp.index % 2 * kWarpTiles + t;
      if (index >= output.num_tiles) break;
      const TileOutput tile = output.Tile(index, 0);
      warp.ForEachLane([&](int lane) {
        LLMI_UNROLL
        for (int i = 0; i < static_cast<int>(kFragmentGroups) * 4; ++i) {
          const int row = first_row + warp.index / 2 * 32 + i / 4 * kHalfRows + MatrixColumn(lane, i % 4);
          output.Store(tile, row, MatrixRow(lane, i % 4), totals.of[t][i / 4][lane].values[i % 4]);
        }
      });
    }
  }
};

}  // namespace llmi::cuda

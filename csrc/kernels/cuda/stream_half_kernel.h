// linear for weights of 16 bits on tensor cores, up to 64 rows of x at a time: x is rounded to their format, products are exact, sums are
// fp32 in an order of the GPU's own, so this has a numerics id of its own (DeviceOptions::bf16_linear, f16_linear).
//
// What does not depend on the number of rows: the instruction (16 columns of 16 rows of W, on its M side, with 8 rows of x), the order of
// its calls inside a chunk of 128 columns, from zero, and the order in which the chunks' sums are added up. Its outputs do not depend on
// each other, so a row of x has the same bits in any company.
//
// A block goes through its tiles of 16 outputs; their pieces (kernels/layout/float_chunks.h) come through one stream. The warps share a
// tile's columns: each multiplies two chunks, waits for its turn, adds their sums to the totals that the warp before it left, and passes
// them on. More than a warp's rows are sets of warps, which read the same slots.
#pragma once

#include <cstddef>

#include "kernels/cuda/half_fragments.h"
#include "kernels/cuda/linear_kernels.h"
#include "kernels/cuda/linear_output.h"
#include "kernels/cuda/norm_prologue.h"
#include "kernels/cuda/stream.h"
#include "kernels/cuda/warp.h"
#include "kernels/layout/float_chunks.h"

namespace llmi::cuda {

constexpr int kHalfColumns = 16;  // of W in one instruction: a step
constexpr int kHalfChunk = 128;   // columns whose sum begins at zero
constexpr int kHalfStreamRows = 64;

// A lane's words of a piece.
LLMI_HD inline HalfMatrixA LoadWeights(const uint8_t* piece, int lane) {
  const FourWords words = *reinterpret_cast<const FourWords*>(piece + FloatPieceLane(lane));
  return {{words.words[0], words.words[1], words.words[2], words.words[3]}};
}

// Block x: every grid_x-th tile; y: 64 rows of x.
// kGroups: of 8 rows of x in a warp. If it is one, the block rounds x itself, to its shared memory, else x comes as fragments.
// kIsWhole: all slots of the stream are full, so nothing needs a guard.
template <HalfFormat F, int kGroups, bool kIsWhole>
struct StreamHalfKernel {
  static constexpr int kMostRegisters = 112;  // two blocks of 288 threads on a multiprocessor
  static constexpr bool kRounds = kGroups == 1;
  static constexpr int kSetRows = kGroups * kHalfRows;
  static constexpr int kSets = kRounds ? 1 : kHalfStreamRows / kSetRows;
  static constexpr unsigned kChunks = 2;  // of a unit
  static constexpr unsigned kChunkSteps = kHalfChunk / kHalfColumns;
  static constexpr unsigned kUnitSteps = kChunks * kChunkSteps;
  // Slots of the stream in a unit. The compiler moves no load before the wait for a slot, where it would take a register too early.
  static constexpr unsigned kUnitSlots = kGroups == 4 ? 2 : 1;
  static constexpr unsigned kSlotChunks = kChunks / kUnitSlots;
  static constexpr unsigned kSlotSteps = kSlotChunks * kChunkSteps;
  static constexpr int kSlots = kMostWarps * kUnitSlots;  // the host computes a unit of every warp before the first is added

  struct alignas(16) Totals {
    float values[4];
  };
  struct Shared {
    StreamRoom<kSlots, static_cast<int>(kSlotSteps) * kFloatPieceBytes> room;
    Totals totals[kSets][kGroups][kWarpLanes];
  };

  LinearOutput output;
  FloatRows rows;            // of x, if the block rounds it
  NormArgs norm;             // x null: none; else of the few rows that the block rounds, which it makes itself
  const uint8_t* fragments;  // if it does not
  int grid_x;

  // Behind them: room for normed rows.
  LLMI_HD static constexpr size_t SharedBytes(int64_t num_rows, int64_t num_cols) {
    return sizeof(Shared) + (kRounds ? static_cast<size_t>(num_rows * RoundedRowBytes(num_cols)) : 0);
  }

  template <typename Visit>
  void ForEachPointer(const Visit& visit) const {
    output.ForEachPointer(visit);
    rows.ForEachPointer(visit);
    visit(norm.x);
    visit(norm.weight);
    visit(norm.bias);
    visit(fragments);
  }

  template <typename Block>
  LLMI_HD void operator()(const Block& block) const {
    using Warp = typename Block::Warp;
    Shared& shared = *reinterpret_cast<Shared*>(block.shared);
    uint8_t* rounded = block.shared + sizeof(Shared);
    const auto first_row = static_cast<unsigned>(block.y * kHalfStreamRows);
    const int rows_left = output.num_rows - static_cast<int>(first_row);
    const int num_sets = rows_left < kSets * kSetRows ? (rows_left + kSetRows - 1) / kSetRows : kSets;
    const unsigned num_steps = NumSteps();
    const unsigned tile_units = (num_steps + kUnitSteps - 1) / kUnitSteps;
    const unsigned tile_slots = (num_steps + kSlotSteps - 1) / kSlotSteps;
    const auto first_tile = static_cast<int>(block.x);
    const auto num_tiles = static_cast<unsigned>((output.num_tiles - first_tile + grid_x - 1) / grid_x);
    const auto tile_index = [=, this](unsigned tile) { return first_tile + static_cast<int>(tile) * grid_x; };
    auto stream = OpenStream(block, &shared.room, num_sets, num_tiles * tile_slots, [=, this](unsigned piece) -> StreamPiece {
      const unsigned tile = piece / tile_slots;
      const unsigned first = (piece - tile * tile_slots) * kSlotSteps;
      const TileOutput from = output.Tile(tile_index(tile), int64_t{num_steps} * kFloatPieceBytes);
      return {from.weights + first * kFloatPieceBytes, static_cast<int>(StepsFrom(first)) * kFloatPieceBytes};
    });
    FloatRows x = rows;
    if constexpr (kRounds) {
      if (norm.x != nullptr) {
        const int64_t num_cols = output.weights.num_cols;
        x = {NormToFloats(block, norm, block.shared + SharedBytes(output.num_rows, num_cols)), num_cols};
      }
    }
    typename Block::template PerWarp<Unit<Warp>> units;
    RunInOrder(
        block, stream, {num_sets, num_sets > 2 ? kMostWarps / 4 : kMostWarps / num_sets, num_tiles * tile_units},
        [&](const Warp& warp, int set) {
          warp.ForEachLane([&](int lane) {
            if constexpr (kRounds) RoundRows(x, warp.index * kWarpLanes + lane, rounded);
            units[warp].x[lane] = FindX(lane, first_row + static_cast<unsigned>(set * kSetRows));
          });
        },
        [&](const Warp& warp, int, unsigned index) {
          Unit<Warp>& unit = units[warp];
          while (index - unit.tile_begin >= tile_units) {
            unit.tile_begin += tile_units;
            ++unit.tile;
          }
          unit.first_step = (index - unit.tile_begin) * kUnitSteps;
          const unsigned in_tile = (index - unit.tile_begin) * kUnitSlots;
          Compute(warp, stream, kIsWhole ? index * kUnitSlots : unit.tile * tile_slots + in_tile, kRounds ? rounded : fragments, &unit);
        },
        [&](const Warp& warp, int set, unsigned index) {
          const Unit<Warp>& unit = units[warp];
          const bool is_last = index - unit.tile_begin + 1 == tile_units;
          Add(warp, unit, is_last, static_cast<int>(first_row) + set * kSetRows, tile_index(unit.tile), shared.totals[set]);
        });
  }

 private:
  template <typename Warp>
  struct Unit {
    unsigned tile = 0;        // of the block's
    unsigned tile_begin = 0;  // the tile's first unit
    unsigned first_step = 0;
    typename Warp::template PerLane<unsigned> x;  // where the lane's part of a tile's first step is
    typename Warp::template PerLane<HalfMatrixD> sums[kChunks][kGroups];
  };

  LLMI_HD unsigned NumSteps() const { return static_cast<unsigned>((output.weights.num_cols + kHalfColumns - 1) / kHalfColumns); }
  // Steps of the slot that begins there.
  LLMI_HD unsigned StepsFrom(unsigned first) const {
    return kIsWhole || NumSteps() - first >= kSlotSteps ? kSlotSteps : NumSteps() - first;
  }
  // What a thread has to do: 16 bytes for each 8 columns.
  LLMI_HD void RoundRows(const FloatRows& x, int thread, uint8_t* to) const {
    const auto row_lanes = static_cast<int>(NumFragments(output.weights.num_cols)) * 4;
    for (int i = thread; i < static_cast<int>(output.num_rows) * row_lanes; i += kMostWarps * kWarpLanes) {
      const int row = i / row_lanes;
      const int lane = i - row * row_lanes;
      *reinterpret_cast<FourWords*>(to + row * RoundedRowBytes(output.weights.num_cols) + lane * 16) =
          RoundedLane<F>(x.x + row * x.x_stride, lane / 4 * kFragmentColumns + lane % 4 * 2, output.weights.num_cols);
    }
  }
  // Sums of rows of x that do not exist are those of the last one, or of whatever is there, and not stored.
  LLMI_HD unsigned FindX(int lane, unsigned first_row) const {
    if constexpr (kRounds) {
      const int64_t row = lane / 4 < output.num_rows ? lane / 4 : output.num_rows - 1;
      return static_cast<unsigned>(row * RoundedRowBytes(output.weights.num_cols)) + static_cast<unsigned>(lane) % 4 * 16;
    }
    const unsigned group = first_row / kHalfRows;
    return group / kFragmentGroups * static_cast<unsigned>(FragmentSetBytes(output.weights.num_cols)) +
           group % kFragmentGroups * kFragmentBytes + static_cast<unsigned>(lane) * 16;
  }

  template <typename Warp, typename Stream>
  LLMI_HD void Compute(const Warp& warp, Stream& stream, unsigned piece, const uint8_t* x_rows, Unit<Warp>* unit) const {
    constexpr unsigned kFragments = kRounds ? 1 : kFragmentGroups;
    constexpr unsigned kFragmentStride = kRounds ? 64 : kFragmentBytes;
    typename Warp::template PerLane<const uint8_t*> from;
    warp.ForEachLane([&](int lane) { from[lane] = x_rows + (unit->x[lane] + unit->first_step / 2 * kFragments * kFragmentStride); });
    LLMI_UNROLL
    for (unsigned chunk = 0; chunk < kChunks; ++chunk) {
      LLMI_UNROLL
      for (int group = 0; group < kGroups; ++group) warp.ForEachLane([&](int lane) { unit->sums[chunk][group][lane] = {}; });
    }
    LLMI_UNROLL
    for (unsigned s = 0; s < kUnitSlots; ++s) {
      if (!kIsWhole && unit->first_step + s * kSlotSteps >= NumSteps()) continue;
      const unsigned num_steps = StepsFrom(unit->first_step + s * kSlotSteps);
      const uint8_t* slot = stream.Wait(piece + s);
      LLMI_UNROLL
      for (unsigned step = 0; step < kSlotSteps; step += 2) {
        typename Warp::template PerLane<FourWords> words[kGroups];
        LLMI_UNROLL
        for (unsigned group = 0; group < kGroups; ++group) {
          warp.ForEachLane([&](int lane) {
            if (!kIsWhole && step >= num_steps) return;
            const unsigned fragment = (s * kSlotSteps + step) / 2 * kFragments + group;
            words[group][lane] = *reinterpret_cast<const FourWords*>(from[lane] + fragment * kFragmentStride);
          });
        }
        LLMI_UNROLL
        for (unsigned i = 0; i < 2; ++i) {
          if (!kIsWhole && step + i >= num_steps) continue;
          typename Warp::template PerLane<HalfMatrixA> weights;
          warp.ForEachLane([&](int lane) { weights[lane] = LoadWeights(slot + (step + i) * kFloatPieceBytes, lane); });
          LLMI_UNROLL
          for (unsigned group = 0; group < kGroups; ++group) {
            typename Warp::template PerLane<HalfMatrixB> columns;
            warp.ForEachLane([&](int lane) { columns[lane] = {{words[group][lane].words[2 * i], words[group][lane].words[2 * i + 1]}}; });
            warp.template MultiplyAdd<F>(weights, columns, unit->sums[s * kSlotChunks + step / kChunkSteps][group]);
          }
        }
      }
      stream.Release(warp, piece + s);
    }
  }

  template <typename Warp>
  LLMI_HD void Add(const Warp& warp, const Unit<Warp>& unit, bool is_last, int first_row, int tile_index,
                   Totals (*carried)[kWarpLanes]) const {
    warp.ForEachLane([&](int lane) {
      LLMI_UNROLL
      for (int group = 0; group < kGroups; ++group) {
        Totals totals = {};
        if (unit.first_step > 0) totals = carried[group][lane];
        LLMI_UNROLL
        for (unsigned chunk = 0; chunk < kChunks; ++chunk) {  // sums of a chunk that is not there are zeros, which change no total
          LLMI_UNROLL
          for (int i = 0; i < 4; ++i) totals.values[i] = totals.values[i] + unit.sums[chunk][group][lane].values[i];
        }
        carried[group][lane] = totals;
      }
    });
    if (!is_last) return;
    warp.Sync();
    const TileOutput tile = output.Tile(tile_index, 0);
    warp.ForEachLane([&](int own_lane) {  // a column of the tile and every second row of x
      const unsigned lane = ComputedHere(static_cast<unsigned>(own_lane));
      const auto column = static_cast<int>(lane % 16);
      const auto row = static_cast<int>(lane / 16);
      const float* from = carried[0][column % 8 * 4].values + row + column / 8 * 2;
      LLMI_ROLL
      for (int i = 0; i < kGroups * 4; ++i) {
        output.Store(tile, first_row + row + 2 * i, column, from[(i / 4 * kWarpLanes + i % 4) * 4]);
      }
    });
  }
};

}  // namespace llmi::cuda

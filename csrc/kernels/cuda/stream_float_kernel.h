// linear for float weights in the CPU's order (linear.h), up to 32 rows of x at a time: blocks of 32 columns, each from zero in the order
// of the columns, and blocks added in their order.
//
// A block goes through its tiles of 16 outputs; their pieces (kernels/layout/float_chunks.h) come through one stream. A warp takes a slot:
// a lane sums a block of columns of two outputs, four blocks are under way at once. The warp waits for its turn, adds these sums to the
// totals that the warp before it left, and passes them on. More than 8 rows of x are sets of warps, which read the same slots.
#pragma once

#include <cstddef>

#include "core/scalar_math.h"
#include "kernels/cuda/half_format.h"
#include "kernels/cuda/linear_kernels.h"
#include "kernels/cuda/linear_output.h"
#include "kernels/cuda/norm_prologue.h"
#include "kernels/cuda/stream.h"
#include "kernels/cuda/warp.h"
#include "kernels/layout/float_chunks.h"

namespace llmi::cuda {

constexpr int kFloatStreamRows = 32;

// Block x: every grid_x-th tile; y: 32 rows of x.
// kXRows: rows of x in a warp, 1 or 8.
// kIsWhole: all slots of the stream are full, and x is aligned to 16 bytes, so nothing needs a guard.
template <PackedType kType, int kXRows, bool kIsWhole>
struct StreamFloatKernel {
  // On a multiprocessor. Sums of 8 rows need so many registers that it holds only one; each warp has 16 of them under way.
  static constexpr int kBlocks = kXRows == 1 ? 2 : 1;
  static constexpr int kMostRegisters = kBlocks == 2 ? 112 : 224;
  static constexpr int kSets = kXRows == 1 ? 1 : kFloatStreamRows / kXRows;
  static constexpr int kPieceColumns = FloatPieceColumns(kType);
  static constexpr int kBlockPieces = static_cast<int>(kBlockSize) / kPieceColumns;
  static constexpr unsigned kSlotBlocks = 4;  // of a slot of the stream, which lanes sum at once
  static constexpr unsigned kSlotPieces = kSlotBlocks * kBlockPieces;
  static constexpr unsigned kUnitSlots = kType == PackedType::kF32 ? 1 : 2;
  static constexpr unsigned kUnitBlocks = kUnitSlots * kSlotBlocks;
  static constexpr unsigned kUnitPieces = kUnitSlots * kSlotPieces;
  static constexpr int64_t kUnitColumns = kUnitPieces * kPieceColumns;
  static constexpr int kSlots = kMostWarps * kUnitSlots;  // the host computes a unit of every warp before the first is added
  static constexpr int kLaneTotals =
      kXRows == 1 ? 1 : kXRows / 2;  // of the tile's 16 kXRows outputs in a lane; of one row, half the lanes'

  struct alignas(kLaneTotals * sizeof(float)) Totals {
    float values[kLaneTotals];
  };
  struct Shared {
    StreamRoom<kSlots, static_cast<int>(kSlotPieces) * kFloatPieceBytes> room;
    Totals totals[kSets][kWarpLanes];
    alignas(16) float sums[kMostWarps][kUnitBlocks][kTileRows][kXRows];
  };
  static constexpr size_t kSharedBytes = sizeof(Shared);  // behind it: room for a normed row
  static_assert(kSharedBytes % 16 == 0);

  LinearOutput output;
  FloatRows rows;
  NormArgs norm;  // x null: none; else of the one row, which the block makes itself
  int grid_x;

  template <typename Visit>
  void ForEachPointer(const Visit& visit) const {
    output.ForEachPointer(visit);
    rows.ForEachPointer(visit);
    visit(norm.x);
    visit(norm.weight);
    visit(norm.bias);
  }

  template <typename Block>
  LLMI_HD void operator()(const Block& block) const {
    using Warp = typename Block::Warp;
    Shared& shared = *reinterpret_cast<Shared*>(block.shared);
    const auto first_row = static_cast<unsigned>(block.y * kFloatStreamRows);
    const int rows_left = output.num_rows - static_cast<int>(first_row);
    const int num_sets = rows_left < kSets * kXRows ? (rows_left + kXRows - 1) / kXRows : kSets;
    const unsigned num_pieces = NumPieces();
    const unsigned tile_units = (num_pieces + kUnitPieces - 1) / kUnitPieces;
    const unsigned tile_slots = (num_pieces + kSlotPieces - 1) / kSlotPieces;
    const auto first_tile = static_cast<int>(block.x);
    const auto num_tiles = static_cast<unsigned>((output.num_tiles - first_tile + grid_x - 1) / grid_x);
    const auto tile_index = [=, this](unsigned tile) { return first_tile + static_cast<int>(tile) * grid_x; };
    auto stream = OpenStream(block, &shared.room, num_sets, num_tiles * tile_slots, [=, this](unsigned slot) -> StreamPiece {
      const unsigned tile = slot / tile_slots;
      const unsigned first = (slot - tile * tile_slots) * kSlotPieces;
      const TileOutput from = output.Tile(tile_index(tile), int64_t{num_pieces} * kFloatPieceBytes);
      return {from.weights + first * kFloatPieceBytes, static_cast<int>(PiecesFrom(first)) * kFloatPieceBytes};
    });
    FloatRows x = rows;
    if constexpr (kXRows == 1 || !kIsWhole) {
      if (norm.x != nullptr) x.x = NormToFloats(block, norm, block.shared + kSharedBytes);
    }
    typename Block::template PerWarp<Unit<Warp>> units;
    RunInOrder(
        block, stream, {num_sets, num_sets > 2 ? kMostWarps / 4 : kMostWarps / num_sets, num_tiles * tile_units},
        [&](const Warp& warp, int set) {
          warp.ForEachLane([&](int lane) { units[warp].x[lane] = FindX(x, lane, first_row + static_cast<unsigned>(set * kXRows)); });
        },
        [&](const Warp& warp, int, unsigned index) {
          Unit<Warp>& unit = units[warp];
          while (index - unit.tile_begin >= tile_units) {
            unit.tile_begin += tile_units;
            ++unit.tile;
          }
          const int64_t before = unit.first_piece;
          unit.first_piece = (index - unit.tile_begin) * kUnitPieces;
          const int64_t columns = (static_cast<int64_t>(unit.first_piece) - before) * kPieceColumns;
          warp.ForEachLane([&](int lane) { Move(columns, &unit.x[lane]); });
          const unsigned in_tile = (index - unit.tile_begin) * kUnitSlots;
          const unsigned first_slot = kIsWhole ? index * kUnitSlots : unit.tile * tile_slots + in_tile;
          LLMI_UNROLL
          for (unsigned s = 0; s < kUnitSlots; ++s)
            Compute(warp, stream, first_slot + s, s, unit, shared.sums[warp.index] + s * kSlotBlocks);
        },
        [&](const Warp& warp, int set, unsigned index) {
          const Unit<Warp>& unit = units[warp];
          const bool is_last = index - unit.tile_begin + 1 == tile_units;
          Add(warp, unit, is_last, static_cast<int>(first_row) + set * kXRows, tile_index(unit.tile), shared.sums[warp.index],
              shared.totals[set]);
        });
  }

 private:
  using BlockSums = float[kTileRows][kXRows];
  struct XRows {
    const float* begins[kXRows];
  };
  template <typename Warp>
  struct Unit {
    unsigned tile = 0;        // of the block's
    unsigned tile_begin = 0;  // the tile's first unit
    unsigned first_piece = 0;
    typename Warp::template PerLane<XRows> x;
  };
  struct alignas(16) Four {
    uint32_t words[4];
  };

  LLMI_HD unsigned NumPieces() const { return static_cast<unsigned>(FloatPieces(kType, output.weights.num_cols)); }
  // Pieces of the slot that begins there.
  LLMI_HD unsigned PiecesFrom(unsigned first) const {
    return kIsWhole || NumPieces() - first >= kSlotPieces ? kSlotPieces : NumPieces() - first;
  }

  // Sums of a slot's blocks of columns. Lanes of eight rows read words of one t at once.
  template <typename Warp, typename Stream>
  LLMI_HD void Compute(const Warp& warp, Stream& stream, unsigned slot, unsigned in_unit, const Unit<Warp>& unit, BlockSums* to) const {
    const unsigned first_piece = unit.first_piece + in_unit * kSlotPieces;
    const bool is_there = kIsWhole || first_piece < NumPieces();
    const uint8_t* from = is_there ? stream.Wait(slot) : nullptr;
    warp.ForEachLane([&](int lane) {
      const unsigned first = static_cast<unsigned>(lane) / 8 * kBlockPieces;  // of the lane's pieces in the slot
      float sums[2][kXRows] = {};
      LLMI_UNROLL
      for (unsigned p = 0; p < kBlockPieces; ++p) {
        const int64_t left = output.weights.num_cols - (first_piece + first + p) * kPieceColumns;
        if (!kIsWhole && left <= 0) break;
        Four words[4];
        LLMI_UNROLL
        for (int t = 0; t < 4; ++t) {
          words[t] = *reinterpret_cast<const Four*>(from + (first + p) * kFloatPieceBytes + FloatPieceLane(lane % 8 * 4 + t));
        }
        AddPiece(words, unit.x[lane], static_cast<int>(in_unit * kSlotPieces + p) * kPieceColumns, left, sums);
      }
      LLMI_UNROLL
      for (int half = 0; half < 2; ++half) {
        LLMI_UNROLL
        for (int row = 0; row < kXRows; ++row) to[lane / 8][lane % 8 + 8 * half][row] = sums[half][row];
      }
    });
    if (is_there) stream.Release(warp, slot);  // after which all lanes have what each of them wrote
  }
  // Adds the products of a piece, whose words 0 and 2 are of one output, words 1 and 3 of the other. left: columns from the piece on.
  LLMI_HD void AddPiece(const Four (&words)[4], const XRows& x_rows, int first, int64_t left, float (&sums)[2][kXRows]) const {
    LLMI_UNROLL
    for (int begin = 0; begin < kPieceColumns; begin += 4) {
      LLMI_UNROLL
      for (int row = 0; row < kXRows; ++row) {
        const FourFloats values = LoadX(x_rows.begins[row] + first + begin, left - begin);
        LLMI_UNROLL
        for (int column = begin; column < begin + 4; ++column) {
          const int pair = kType == PackedType::kF32 ? column % 2 : column / 8;
          LLMI_UNROLL
          for (int half = 0; half < 2; ++half) {
            const float weight = Weight(words[column % 8 / 2].words[half + 2 * pair], column);
            sums[half][row] = Fma(weight, values.values[column - begin], sums[half][row]);
          }
        }
      }
    }
  }
  LLMI_HD static float Weight(uint32_t word, int column) {
    if constexpr (kType == PackedType::kF32) return __builtin_bit_cast(float, word);
    if constexpr (kType == PackedType::kBF16) return __builtin_bit_cast(float, column % 2 == 0 ? word << 16 : word & 0xFFFF0000u);
    return HalfBitsToFloat(static_cast<uint16_t>(word >> (column % 2 * 16)));
  }
  LLMI_HD static FourFloats LoadX(const float* from, int64_t left) {
    if constexpr (kIsWhole) return *reinterpret_cast<const FourFloats*>(from);
    FourFloats four = {};
    LLMI_UNROLL
    for (int i = 0; i < 4; ++i) {
      if (i < left) four.values[i] = from[i];
    }
    return four;
  }
  // Where a lane's columns of a tile's first unit begin. Rows that do not exist are the last one, and their sums are not stored.
  LLMI_HD XRows FindX(const FloatRows& x, int lane, unsigned first_row) const {
    XRows found;
    LLMI_UNROLL
    for (int i = 0; i < kXRows; ++i) {
      const unsigned row = first_row + static_cast<unsigned>(i);
      const auto last = static_cast<unsigned>(output.num_rows) - 1;
      found.begins[i] = x.x + (row < last ? row : last) * x.x_stride + lane / 8 * static_cast<int>(kBlockSize);
    }
    return found;
  }
  LLMI_HD static void Move(int64_t columns, XRows* x_rows) {
    LLMI_UNROLL
    for (int i = 0; i < kXRows; ++i) x_rows->begins[i] += columns;
  }

  template <typename Warp>
  LLMI_HD void Add(const Warp& warp, const Unit<Warp>& unit, bool is_last, int first_row, int tile_index, const BlockSums* sums,
                   Totals* carried) const {
    warp.ForEachLane([&](int lane) {
      Totals totals = {};
      if (unit.first_piece > 0) totals = carried[lane];
      LLMI_UNROLL
      for (unsigned b = 0; b < kUnitBlocks; ++b) {  // the sum of a block that is not there is zero, which changes no total
        const Totals block = reinterpret_cast<const Totals*>(sums[b])[kXRows == 1 ? lane % 16 : lane];
        LLMI_UNROLL
        for (int i = 0; i < kLaneTotals; ++i) totals.values[i] = totals.values[i] + block.values[i];
      }
      carried[lane] = totals;
      if (!is_last || lane * kLaneTotals >= kTileRows * kXRows) return;
      const TileOutput tile = output.Tile(tile_index, 0);
      LLMI_ROLL
      for (int i = 0; i < kLaneTotals; ++i) {
        const int index = lane * kLaneTotals + i;
        output.Store(tile, first_row + index % kXRows, index / kXRows, carried[lane].values[i]);
      }
    });
  }
};

}  // namespace llmi::cuda

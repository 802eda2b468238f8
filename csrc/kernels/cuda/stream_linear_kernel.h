// linear for quantised weights in chunks (kernels/layout/chunks.h), for up to 64 rows of x at a time, in the order of linear.h.
//
// A block goes through its tiles of 16 outputs; their chunks come through one stream, from tile to tile without a pause. The warps share
// a tile's columns: each multiplies a unit of up to 8 blocks of 32 columns with 8 or 16 rows of x, waits for its turn, adds the blocks'
// sums to the totals that the warp before it left, and passes them on. More than 16 rows are sets of warps, which read the same slots.
//
// A dot begins at 0x4B400000, so its bits are those of the float 12,582,912 + dot: one fma makes the float of the dot, exactly, and takes
// back the factor of codes that stand in the high bits of their bytes (chunk_parts.h). With activations of two bytes the dot is
// fma(256, float(dot of high bytes), float(dot of low bytes)), which rounds once, as the float of the whole integer does.
#pragma once

#include <cstddef>
#include <type_traits>

#include "kernels/cuda/chunk_parts.h"
#include "kernels/cuda/gated_output.h"
#include "kernels/cuda/linear_kernels.h"
#include "kernels/cuda/norm_prologue.h"
#include "kernels/cuda/stream.h"
#include "kernels/cuda/stream_choices.h"
#include "kernels/cuda/warp.h"
#include "kernels/layout/chunks.h"

namespace llmi::cuda {

constexpr int kStreamRows = 64;  // of x in a block

// The instruction has 8 columns for rows of x. Up to four rows (StreamRowsForm::kFour) stand in the even ones, so a lane has one row's
// sums; else it has those of two rows of each group of 8.
//
// Block x: every grid_x-th tile; y: 64 rows of x.
// kIsWhole: all chunks are, so nothing needs a guard.
// Output: LinearOutput, or GatedOutput.
template <PackedType kType, ActivationForm kForm, StreamRowsForm kRows, bool kIsWhole, typename Output>
struct StreamKernel {
  static constexpr int kMostRegisters = 112;  // two blocks of 288 threads on a multiprocessor
  static constexpr bool kFour = kRows == StreamRowsForm::kFour;
  static constexpr bool kFine = kForm == ActivationForm::kFine;
  static constexpr bool kTwoBytes = kForm == ActivationForm::kTwoBytes;
  static constexpr bool kMinimum = HasMinimumPacked(kType);
  static constexpr bool kHalves = HasHalfScalesPacked(kType);
  static constexpr int kGroups = kRows == StreamRowsForm::kSixteen ? 2 : 1;  // of 8 columns of the instruction
  static constexpr int kXRows = kFour ? 1 : 2;                               // of a group whose sums a lane has
  static constexpr int kSums = 2 * kXRows;                                   // of a group, in a lane
  static constexpr int kSetRows = kFour ? 4 : 8 * kGroups;
  static constexpr int kSets = kFour ? 1 : kStreamRows / kSetRows;
  // What a warp keeps until its turn must fit its registers.
  static constexpr bool kIsGated = Output::kGroupTiles > 1;
  static constexpr bool kIsHalvedForGated = kFour ? kTwoBytes || kHalves : kTwoBytes ? IsTablePacked(kType) : kMinimum;
  static constexpr bool kIsHalved =
      (kIsGated && kIsHalvedForGated) || (kHalves    ? !kFour || kForm != ActivationForm::kCoarse
                                          : kMinimum ? kFine || (kTwoBytes && (!kFour || PackedBits(kType) > 4))
                                                     : !kIsWhole && (kFine || (kTwoBytes && !kFour && IsTablePacked(kType))));
  static constexpr int kUnits = kGroups * (kIsHalved ? 2 : 1);  // of a chunk
  static constexpr int kUnitBlocks = kChunkBlocks / kUnits;
  static constexpr int kXScales = kFine ? 2 : 1;          // for each 32 columns
  static constexpr int kDots = kFine || kHalves ? 2 : 1;  // of a block
  static constexpr int kTerms = kHalves ? 2 : 1;          // that a block adds, without its minimum
  static constexpr int kSlotBytes = static_cast<int>(ChunkBytes(kType, kChunkBlocks));
  static constexpr int kSlots = kSlotBytes > 2560 ? 8 : 16;
  static_assert(kSlots >= kMostWarps, "the host computes a unit of every warp before the first is added");

  struct Totals {
    float values[kGroups * kSums];
  };
  struct Shared {
    StreamRoom<kSlots, kSlotBytes> room;
    Totals totals[kSets][kWarpLanes];
    alignas(16) ChunkTable table;  // so that it comes to registers in one load
    QuantizedRows x;               // of up to four rows, so that it takes no registers
    typename Output::template Room<kSetRows> ends[kSets];
  };
  static constexpr size_t kSharedBytes = (sizeof(Shared) + 15) / 16 * 16;  // behind it: room for normed rows

  Output output;
  Int8Rows rows;
  NormArgs norm;  // x null: rows are made already; else of up to four rows, which each block makes (norm_prologue.h)
  int grid_x;
  unsigned num_blocks;  // of 32 columns
  ChunkTable table;

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
    const int first_row = static_cast<int>(block.y) * kStreamRows;
    const int rows_left = output.num_rows - first_row;
    const int num_sets = rows_left < kSets * kSetRows ? (rows_left + kSetRows - 1) / kSetRows : kSets;
    const unsigned num_chunks = (num_blocks + kChunkBlocks - 1) / kChunkBlocks;
    constexpr int kGroup = Output::kGroupTiles;
    const int first_group = static_cast<int>(block.x);
    const auto num_tiles = static_cast<unsigned>((output.num_tiles / kGroup - first_group + grid_x - 1) / grid_x * kGroup);
    const auto tile_index = [=, this](unsigned tile) {  // of all, of a tile of the block's
      const auto own = static_cast<int>(tile);
      return kGroup == 1 ? first_group + own * grid_x : (first_group + own / kGroup * grid_x) * kGroup + own % kGroup;
    };
    const int64_t tile_bytes = ChunkTileBytes(kType, output.weights.num_cols);
    if constexpr (IsTablePacked(kType)) {
      block.ForEachThread([&](int thread) {
        if (thread == 0) shared.table = table;
      });
    }
    auto stream = OpenStream(block, &shared.room, num_sets * kUnits, num_tiles * num_chunks, [=, this](unsigned piece) -> StreamPiece {
      const unsigned tile = piece / num_chunks;
      const unsigned chunk = piece - tile * num_chunks;
      const TileOutput from = output.Tile(tile_index(tile), tile_bytes);
      return {from.weights + chunk * ChunkBytes(kType, kChunkBlocks),
              static_cast<int>(ChunkBytes(kType, BlocksFrom(chunk * kChunkBlocks)))};
    });
    if constexpr (kFour) {
      const QuantizedRows x = norm.x != nullptr ? NormToCodes(block, norm, rows.x, block.shared + kSharedBytes) : rows.x;
      block.ForEachThread([&](int thread) {
        if (thread == 0) shared.x = x;
      });
    }
    const int warps_per_set = num_sets > 4 ? 1 : num_sets > 2 ? kMostWarps / 4 : kMostWarps / num_sets;
    const unsigned tile_units = num_chunks * kUnits;
    typename Block::template PerWarp<Unit<Warp>> units;
    RunInOrder(
        block, stream, {num_sets, warps_per_set, num_tiles * tile_units},
        [&](const Warp& warp, int set) {
          warp.ForEachLane([&](int lane) { FindRows(lane, first_row + set * kSetRows, &units[warp].rows[lane]); });
        },
        [&](const Warp& warp, int, unsigned index) {
          Unit<Warp>& unit = units[warp];
          while (index - unit.tile_begin >= tile_units) {
            unit.tile_begin += tile_units;
            ++unit.tile;
          }
          unit.first_block = (index - unit.tile_begin) * kUnitBlocks;
          Compute(warp, stream, index / kUnits, kFour ? shared.x : rows.x, shared.table, &unit);
        },
        [&](const Warp& warp, int set, unsigned index) {
          const Unit<Warp>& unit = units[warp];
          const bool is_last = index - unit.tile_begin + 1 == tile_units;
          Add(warp, unit, is_last, first_row + set * kSetRows, tile_index(unit.tile), shared.totals[set], &shared.ends[set]);
        });
  }

 private:
  using Codes = ChunkCodes<kType, kUnitBlocks>;
  using Scales = ChunkScales<kType, kUnitBlocks>;
  // What a lane adds up: total = fma(a, b, total), then, with a minimum, total = fma(minimum, x_sum, total).
  struct Terms {
    float a[kUnitBlocks][kTerms][kGroups][kSums];
    float b[kUnitBlocks][kTerms][kGroups][kSums];
  };
  struct XValues {
    float of[kUnitBlocks][kGroups][kXRows];
  };
  // Where a lane's part of the rows of x begins: in bytes of codes, and in blocks of 32 columns.
  struct LaneRows {
    unsigned codes[kGroups];
    unsigned blocks[kGroups][kXRows];
  };
  template <typename Warp>
  struct Unit {
    unsigned tile = 0;        // of the block's
    unsigned tile_begin = 0;  // the tile's first unit
    unsigned first_block = 0;
    typename Warp::template PerLane<LaneRows> rows;
    typename Warp::template PerLane<Terms> terms;
    typename Warp::template PerLane<Scales> minima;
    typename Warp::template PerLane<XValues> x_sums;
  };
  struct XCodes {
    WideMatrixB of[kUnitBlocks][kGroups];
  };
  struct XScales {
    float of[kUnitBlocks][kGroups][kXRows][kXScales];
  };

  // Blocks of the chunk that begins there.
  LLMI_HD unsigned BlocksFrom(unsigned first) const {
    return kIsWhole || num_blocks - first >= kChunkBlocks ? kChunkBlocks : num_blocks - first;
  }
  // Sums of rows of x that do not exist are those of the last one, and not stored.
  LLMI_HD void FindRows(int lane, int first_row, LaneRows* to) const {
    const auto begin = [&](int row) { return static_cast<unsigned>(row < output.num_rows ? row : output.num_rows - 1) * num_blocks; };
    LLMI_UNROLL
    for (int group = 0; group < kGroups; ++group) {
      const unsigned lane_columns = static_cast<unsigned>(lane % 4) * (kHalves ? 4 : 8);
      to->codes[group] = begin(first_row + (kFour ? lane / 8 : group * 8 + lane / 4)) * static_cast<unsigned>(kBlockSize) + lane_columns;
      LLMI_UNROLL
      for (int i = 0; i < kXRows; ++i) to->blocks[group][i] = begin(first_row + SumRow(lane, group, i));
    }
  }
  // The row of x whose sums a lane has at this index.
  LLMI_HD static int SumRow(int lane, int group, int i) { return kFour ? lane % 4 : group * 8 + lane % 4 * 2 + i % 2; }

  template <typename Warp, typename Stream>
  LLMI_HD void Compute(const Warp& warp, Stream& stream, unsigned piece, const QuantizedRows& x_rows, const ChunkTable& shared_table,
                       Unit<Warp>* unit) const {
    const unsigned in_chunk = unit->first_block % kChunkBlocks;
    const unsigned chunk_blocks = BlocksFrom(unit->first_block - in_chunk);
    const int unit_blocks = static_cast<int>(chunk_blocks) - static_cast<int>(in_chunk);
    typename Warp::template PerLane<XCodes> high;
    typename Warp::template PerLane<XCodes> low;
    typename Warp::template PerLane<XScales> x_scales;
    warp.ForEachLane([&](int lane) {
      const LaneRows& from = unit->rows[lane];
      LoadXCodes(x_rows.codes, from, unit->first_block, unit_blocks, &high[lane]);
      if constexpr (kTwoBytes) LoadXCodes(x_rows.low, from, unit->first_block, unit_blocks, &low[lane]);
      LoadXValues<kXScales>(x_rows.scales, from, unit->first_block, unit_blocks, &x_scales[lane].of[0][0][0][0]);
      if constexpr (kMinimum) LoadXValues<1>(x_rows.sums, from, unit->first_block, unit_blocks, &unit->x_sums[lane].of[0][0][0]);
    });
    const uint8_t* slot = stream.Wait(piece);
    typename Warp::template PerLane<Codes> codes;
    ChunkTable own_table;
    if constexpr (IsTablePacked(kType)) own_table = shared_table;
    typename Warp::template PerLane<Scales> scales;
    warp.ForEachLane([&](int lane) {
      codes[lane].Load(slot, in_chunk, lane);
      scales[lane].template Load<kIsWhole>(slot, 0, lane, chunk_blocks, in_chunk);
      if constexpr (kMinimum) unit->minima[lane].template Load<kIsWhole>(slot, 1, lane, chunk_blocks, in_chunk);
    });
    stream.Release(warp, piece);
    LLMI_UNROLL
    for (int b = 0; b < kUnitBlocks; ++b) {
      typename Warp::template PerLane<WideMatrixA> a;
      warp.ForEachLane([&](int lane) { a[lane] = codes[lane].Bytes(own_table, b); });
      LLMI_UNROLL
      for (int group = 0; group < kGroups; ++group) {
        Dots<Warp> dots;
        Dots<Warp> low_dots;
        Multiply(warp, a, high, b, group, &dots);
        if constexpr (kTwoBytes) Multiply(warp, a, low, b, group, &low_dots);
        warp.ForEachLane([&](int lane) {
          LLMI_UNROLL
          for (int i = 0; i < kSums; ++i) {
            const auto dot = [&](int d) {
              const float whole = ToFloat(dots.of[d][lane], b, i);
              if constexpr (kTwoBytes) return Fma(256.0f, whole, ToFloat(low_dots.of[d][lane], b, i));
              return whole;
            };
            const float* x_scale = x_scales[lane].of[b][group][i % kXRows];
            Terms& terms = unit->terms[lane];
            LLMI_UNROLL
            for (int t = 0; t < kTerms; ++t) {
              const float scale = scales[lane].Of(b, t, i / kXRows);
              terms.a[b][t][group][i] = kFine ? dot(t) * x_scale[kFine ? t : 0] : dot(t);
              if constexpr (kFine && !kHalves) terms.a[b][t][group][i] = Fma(dot(1), x_scale[1], terms.a[b][t][group][i]);
              terms.b[b][t][group][i] = kFine ? scale : scale * x_scale[0];
            }
          }
        });
      }
    }
  }

  template <typename Warp>
  struct Dots {
    typename Warp::template PerLane<MatrixD> of[kDots];
  };
  // The dots of a block with a group's rows: of all columns, or of each half of them.
  template <typename Warp>
  LLMI_HD static void Multiply(const Warp& warp, const typename Warp::template PerLane<WideMatrixA>& a,
                               const typename Warp::template PerLane<XCodes>& x_codes, int b, int group, Dots<Warp>* dots) {
    constexpr bool kSigned = Codes::kSigned;
    typename Warp::template PerLane<WideMatrixB> x;
    warp.ForEachLane([&](int lane) { x[lane] = x_codes[lane].of[b][group]; });
    if constexpr (kHalves) {
      warp.template MultiplyHalf<kSigned, 0>(a, x, dots->of[0]);
      warp.template MultiplyHalf<kSigned, 1>(a, x, dots->of[1]);
    } else if constexpr (kFine) {
      for (int half = 0; half < 2; ++half) {
        typename Warp::template PerLane<WideMatrixB> own;
        warp.ForEachLane([&](int lane) {  // lanes with t below 2 have the first 16 columns
          if (lane % 4 / 2 == half) own[lane] = x[lane];
        });
        warp.template Multiply<kSigned>(a, own, dots->of[half]);
      }
    } else {
      warp.template Multiply<kSigned>(a, x, dots->of[0]);
    }
  }

  template <typename Warp>
  LLMI_HD void Add(const Warp& warp, const Unit<Warp>& unit, bool is_last, int first_row, int tile_index, Totals* carried,
                   typename Output::template Room<kSetRows>* room) const {
    const int unit_blocks = static_cast<int>(num_blocks - unit.first_block);  // or more
    warp.ForEachLane([&](int lane) {
      Totals totals = {};
      if (unit.first_block > 0) totals = carried[lane];
      const auto add_block = [&](int b) {
        LLMI_UNROLL
        for (int group = 0; group < kGroups; ++group) {
          LLMI_UNROLL
          for (int i = 0; i < kSums; ++i) {
            float& total = totals.values[group * kSums + i];
            LLMI_UNROLL
            for (int t = 0; t < kTerms; ++t) total = Fma(unit.terms[lane].a[b][t][group][i], unit.terms[lane].b[b][t][group][i], total);
            if constexpr (kMinimum) {
              total = Fma(unit.minima[lane].Of(b, 0, i / kXRows), unit.x_sums[lane].of[b][group][i % kXRows], total);
            }
          }
        }
      };
      LLMI_UNROLL
      for (int b = 0; b < kUnitBlocks; ++b) {  // zeros in place of a block that is not there would change -0
        if (kIsWhole || b < unit_blocks) add_block(b);
      }
      carried[lane] = totals;
      if (!is_last) return;
      const TileOutput tile = output.Tile(tile_index, 0);
      const int row =
          kGroups == 1 && Output::kGroupTiles == 1 ? first_row : static_cast<int>(ComputedHere(static_cast<unsigned>(first_row)));
      LLMI_ROLL
      for (int i = 0; i < kGroups * kSums; ++i) {
        output.Keep(tile, tile_index, row, SumRow(lane, i / kSums, i), lane / 4 + i % kSums / kXRows * 8, carried[lane].values[i], room);
      }
    });
    if (is_last) output.EndTile(warp, tile_index, first_row, room);
  }

  LLMI_HD static float ToFloat(const MatrixD& d, int block, int i) {
    const float sum = __builtin_bit_cast(float, d.values[kFour ? 2 * i : i]);
    const float factor = Codes::Factor(block);
    return factor == 1.0f ? sum - kMagicFloat : Fma(sum, 1.0f / factor, -kMagicFloat / factor);
  }

  // The lane's columns of x; up to four rows stand in columns 2 r and 2 r + 1 of the instruction.
  LLMI_HD static void LoadXCodes(const int8_t* codes, const LaneRows& rows, unsigned first_block, int unit_blocks, XCodes* to) {
    struct alignas(8) Words {
      uint32_t words[2];
    };
    LLMI_UNROLL
    for (int group = 0; group < kGroups; ++group) {
      const int8_t* from = codes + (rows.codes[group] + first_block * static_cast<unsigned>(kBlockSize));
      LLMI_UNROLL
      for (int b = 0; b < kUnitBlocks; ++b) {
        if (!kIsWhole && b >= unit_blocks) continue;
        if constexpr (kHalves) {
          const uint32_t* words = reinterpret_cast<const uint32_t*>(from + b * kBlockSize);
          to->of[b][group] = {{words[0], words[4]}};
        } else {
          const Words words = *reinterpret_cast<const Words*>(from + b * kBlockSize);
          to->of[b][group] = {{words.words[0], words.words[1]}};
        }
      }
    }
  }
  // kCount floats for each block of the rows whose sums the lane has: to [block][group][row][count].
  template <int kCount>
  LLMI_HD static void LoadXValues(const float* values, const LaneRows& rows, unsigned first_block, int unit_blocks, float* to) {
    constexpr int kAtOnce = kUnitBlocks * kCount < 4 ? kUnitBlocks * kCount : 4;
    struct alignas(kAtOnce * 4) Several {
      float values[kAtOnce];
    };
    LLMI_UNROLL
    for (int group = 0; group < kGroups; ++group) {
      LLMI_UNROLL
      for (int i = 0; i < kXRows; ++i) {
        const float* from = values + (rows.blocks[group][i] + first_block) * kCount;
        const auto place = [&](int v) -> float& { return to[((v / kCount * kGroups + group) * kXRows + i) * kCount + v % kCount]; };
        if constexpr (kIsWhole) {
          LLMI_UNROLL
          for (int v = 0; v < kUnitBlocks * kCount; v += kAtOnce) {
            const Several several = *reinterpret_cast<const Several*>(from + v);
            LLMI_UNROLL
            for (int j = 0; j < kAtOnce; ++j) place(v + j) = several.values[j];
          }
        } else {
          LLMI_UNROLL
          for (int v = 0; v < kUnitBlocks * kCount; ++v) {
            if (v / kCount < unit_blocks) place(v) = from[v];
          }
        }
      }
    }
  }
};

// The kernels by their outputs, with short names.
template <PackedType kType, ActivationForm kForm, StreamRowsForm kRows, bool kIsWhole>
struct StreamLinearKernel : StreamKernel<kType, kForm, kRows, kIsWhole, LinearOutput> {};
template <PackedType kType, ActivationForm kForm, StreamRowsForm kRows, bool kIsWhole>
struct StreamGatedKernel : StreamKernel<kType, kForm, kRows, kIsWhole, GatedOutput> {};

}  // namespace llmi::cuda

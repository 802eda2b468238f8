// linear for quantised weights in whole chunks (kernels/layout/chunks.h) and many rows of x, as prompts have, in the order of linear.h.
//
// A block has 64 rows of x and up to 128 outputs, a warp a tile of 16 outputs for all of the rows or for half of them. A warp takes all
// columns, so its sums stay in its registers from the first block of 32 columns to the last one, and what it makes of W serves all its
// rows. Chunks of W, and x by half a chunk's columns, come by asynchronous copies, a step ahead of the products.
//
// The sums are those of StreamKernel (stream_linear_kernel.h), term by term.
#pragma once

#include <cstddef>

#include "core/scalar_math.h"
#include "kernels/cuda/async_copy.h"
#include "kernels/cuda/chunk_parts.h"
#include "kernels/cuda/kv_words.h"
#include "kernels/cuda/linear_output.h"
#include "kernels/cuda/row_codes.h"
#include "kernels/cuda/warp.h"
#include "kernels/layout/chunks.h"

namespace llmi::cuda {

constexpr int kPromptRows = 64;  // of a block
constexpr int kPromptWarps = 8;

// The most used types. The others stream their weights once for each 64 rows (stream_linear_kernel.h).
constexpr bool HasPromptTiles(PackedType type) {
  return type == PackedType::kQ4 || type == PackedType::kQ4Min || type == PackedType::kQ4K || type == PackedType::kQ6K ||
         type == PackedType::kQ8;
}

// Block x: 64 rows of x; y: kBlockTiles tiles.
template <PackedType kType, ActivationForm kForm>
struct PromptLinearKernel {
  static_assert(kForm != ActivationForm::kFine);
  static constexpr int kThreads = kPromptWarps * kWarpLanes;
  static constexpr int kMostRegisters = 128;  // two blocks fit a multiprocessor
  static constexpr bool kTwoBytes = kForm == ActivationForm::kTwoBytes;
  static constexpr bool kMinimum = HasMinimumPacked(kType);
  static constexpr bool kHalves = HasHalfScalesPacked(kType);
  static constexpr int kTerms = kHalves ? 2 : 1;  // of a block of 32 columns, without its minimum
  static constexpr int kSlotBytes = static_cast<int>(ChunkBytes(kType, kChunkBlocks));
  static constexpr int kRowParts = kSlotBytes > 4096 ? 2 : 1;  // so that shared memory has room for the chunks
  static constexpr int kWarpRows = kPromptRows / kRowParts;
  static constexpr int kGroups = kWarpRows / 8;  // of rows: columns of an instruction
  static constexpr int kBlockTiles = kPromptWarps / kRowParts;
  static constexpr int kStepBlocks = 4;  // that a copy of x has
  static constexpr int kSteps = kChunkBlocks / kStepBlocks;
  static constexpr int kStepColumns = kStepBlocks * static_cast<int>(kBlockSize);
  static constexpr int kXRow = kStepColumns + 32;  // bytes; rows that are read at the same time begin in different banks

  struct XPart {
    alignas(16) int8_t codes[kTwoBytes ? 2 : 1][kPromptRows][kXRow];
    Words<float, kStepBlocks> scales[kPromptRows];
    Words<float, kStepBlocks> sums[kMinimum ? kPromptRows : 1];
  };
  struct Shared {
    alignas(16) uint8_t chunks[2][kBlockTiles][kSlotBytes];
    XPart x[2];
    const uint8_t* tiles[kBlockTiles];  // of W
  };
  static constexpr size_t kSharedBytes = sizeof(Shared);
  static_assert(kSharedBytes <= 96 * 1024);

  LinearOutput output;
  QuantizedRows rows;
  unsigned num_blocks;  // of 32 columns, a multiple of kChunkBlocks

  template <typename Visit>
  void ForEachPointer(const Visit& visit) const {
    output.ForEachPointer(visit);
    VisitPointers(rows, visit);
  }

  template <typename Block>
  LLMI_HD void operator()(const Block& block) const {
    using Warp = typename Block::Warp;
    Shared& shared = *reinterpret_cast<Shared*>(block.shared);
    const int first_row = static_cast<int>(block.x) * kPromptRows;
    const int first_tile = static_cast<int>(block.y) * kBlockTiles;
    // Tiles and rows that do not exist are copies of the last ones, and not stored.
    block.ForEachThread([&](int tile) {
      if (tile >= kBlockTiles) return;
      const int last = output.num_tiles - 1;
      const int64_t tile_bytes = ChunkTileBytes(kType, output.weights.num_cols);
      shared.tiles[tile] = output.Tile(first_tile + tile < last ? first_tile + tile : last, tile_bytes).weights;
    });
    AsyncCopies<Block> copies;
    const unsigned num_steps = num_blocks / kStepBlocks;
    const auto copy = [&](unsigned step) {
      if (step < num_steps) {
        if (step % kSteps == 0) block.Streams(int64_t{kBlockTiles} * kSlotBytes);
        block.ForEachWarp([&](const Warp& warp) {
          warp.ForEachLane([&](int lane) { CopyStep(shared, first_row, step, warp.index * kWarpLanes + lane, &copies); });
        });
      }
      copies.Commit();
    };
    typename Block::template PerWarp<typename Warp::template PerLane<Totals>> totals;
    copy(0);
    LLMI_ROLL
    for (unsigned step = 0; step < num_steps; ++step) {
      copies.template Wait<0>();
      block.Barrier();  // the step's copies are there, and no warp reads the slots of the one before
      copy(step + 1);
      block.ForEachWarp([&](const Warp& warp) { AddStep(warp, shared, step, &totals[warp]); });
    }
    block.ForEachWarp([&](const Warp& warp) {
      warp.ForEachLane([&](int lane) {
        const int index = first_tile + TileOf(warp);
        if (index >= output.num_tiles) return;
        const TileOutput tile = output.Tile(index, 0);
        LLMI_UNROLL
        for (int group = 0; group < kGroups; ++group) {
          LLMI_UNROLL
          for (int i = 0; i < 4; ++i) {
            const int row = first_row + FirstRow(warp) + group * 8 + MatrixColumn(lane, i);
            output.Store(tile, row, MatrixRow(lane, i), totals[warp][lane].of[group][i]);
          }
        }
      });
    });
  }

 private:
  using Codes = ChunkCodes<kType, kStepBlocks>;
  using Scales = ChunkScales<kType, kStepBlocks>;
  // Sums of a lane: D of an instruction, whose rows are outputs and whose columns are rows of x.
  struct Totals {
    float of[kGroups][4];
  };
  // What a lane makes of W for a step: the instruction's bytes, and scales and minima of its two outputs.
  struct Weights {
    WideMatrixA bytes[kStepBlocks];
    float scales[kStepBlocks][kTerms][2];
    float minima[kStepBlocks][2];
  };
  // Of a step and a group of rows of x.
  struct XCodes {
    WideMatrixB of[kStepBlocks];
  };
  // Of rows 2 (lane % 4) and the next.
  struct XValues {
    Words<float, kStepBlocks> of[2];
  };
  template <typename Warp>
  struct Dots {
    typename Warp::template PerLane<MatrixD> of[kTerms];
  };

  template <typename Warp>
  LLMI_HD static int FirstRow(const Warp& warp) {
    return warp.index % kRowParts * kWarpRows;
  }
  template <typename Warp>
  LLMI_HD static int TileOf(const Warp& warp) {
    return warp.index / kRowParts;
  }

  template <typename Copies>
  LLMI_HD void CopyStep(Shared& shared, int first_row, unsigned step, int own_thread, Copies* copies) const {
    const auto thread =
        static_cast<int>(ComputedHere(static_cast<unsigned>(own_thread)));  // else addresses stay in registers from step to step
    if (step % kSteps == 0) {
      constexpr int kUnits = kSlotBytes / 16;
      const unsigned chunk = step / kSteps;
      LLMI_ROLL
      for (int i = thread; i < kBlockTiles * kUnits; i += kThreads) {
        copies->Copy(&shared.chunks[chunk % 2][i / kUnits][i % kUnits * 16],
                     shared.tiles[i / kUnits] + chunk * kSlotBytes + i % kUnits * 16);
      }
    }
    XPart& x = shared.x[step % 2];
    const auto row_of = [&](int row) {
      return static_cast<int64_t>(first_row + row < output.num_rows ? first_row + row : output.num_rows - 1);
    };
    constexpr int kUnits = kStepColumns / 16;  // of a row
    LLMI_ROLL
    for (int i = thread; i < kPromptRows * kUnits; i += kThreads) {
      const int64_t from = (row_of(i / kUnits) * num_blocks + step * kStepBlocks) * kBlockSize + i % kUnits * 16;
      copies->Copy(&x.codes[0][i / kUnits][i % kUnits * 16], rows.codes + from);
      if constexpr (kTwoBytes) copies->Copy(&x.codes[1][i / kUnits][i % kUnits * 16], rows.low + from);
    }
    static_assert(kPromptRows <= kThreads && kStepBlocks * sizeof(float) == 16);
    if (thread >= kPromptRows) return;
    const int64_t from = row_of(thread) * num_blocks + step * kStepBlocks;
    copies->Copy(&x.scales[thread], rows.scales + from);
    if constexpr (kMinimum) copies->Copy(&x.sums[thread], rows.sums + from);
  }

  template <typename Warp>
  LLMI_HD void AddStep(const Warp& warp, const Shared& shared, unsigned step, typename Warp::template PerLane<Totals>* totals) const {
    const XPart& x = shared.x[step % 2];
    const unsigned first_block = step % kSteps * kStepBlocks;  // in its chunk
    typename Warp::template PerLane<Weights> weights;
    warp.ForEachLane([&](int lane) {
      const uint8_t* chunk = shared.chunks[step / kSteps % 2][TileOf(warp)];
      Codes codes;
      Scales scales;
      Scales minima;
      codes.Load(chunk, first_block, lane);
      scales.template Load<true>(chunk, 0, lane, kChunkBlocks, first_block);
      if constexpr (kMinimum) minima.template Load<true>(chunk, 1, lane, kChunkBlocks, first_block);
      LLMI_UNROLL
      for (int b = 0; b < kStepBlocks; ++b) {
        weights[lane].bytes[b] = codes.Bytes({}, b);
        LLMI_UNROLL
        for (int row = 0; row < 2; ++row) {
          LLMI_UNROLL
          for (int term = 0; term < kTerms; ++term) weights[lane].scales[b][term][row] = scales.Of(b, term, row);
          if constexpr (kMinimum) weights[lane].minima[b][row] = minima.Of(b, 0, row);
        }
      }
    });
    LLMI_UNROLL
    for (int group = 0; group < kGroups; ++group) {
      const int row = FirstRow(warp) + group * 8;
      typename Warp::template PerLane<XCodes> high;
      typename Warp::template PerLane<XCodes> low;
      typename Warp::template PerLane<XValues> x_scales;
      typename Warp::template PerLane<XValues> x_sums;
      warp.ForEachLane([&](int lane) {
        LoadXCodes(x.codes[0][row + lane / 4], lane, &high[lane]);
        if constexpr (kTwoBytes) LoadXCodes(x.codes[1][row + lane / 4], lane, &low[lane]);
        LLMI_UNROLL
        for (int i = 0; i < 2; ++i) {
          x_scales[lane].of[i] = x.scales[row + lane % 4 * 2 + i];
          if constexpr (kMinimum) x_sums[lane].of[i] = x.sums[row + lane % 4 * 2 + i];
        }
      });
      LLMI_UNROLL
      for (int b = 0; b < kStepBlocks; ++b) {
        Dots<Warp> dots;
        Dots<Warp> low_dots;
        Multiply(warp, weights, high, b, &dots);
        if constexpr (kTwoBytes) Multiply(warp, weights, low, b, &low_dots);
        warp.ForEachLane([&](int lane) {
          LLMI_UNROLL
          for (int i = 0; i < 4; ++i) {
            float& total = (*totals)[lane].of[group][i];
            LLMI_UNROLL
            for (int term = 0; term < kTerms; ++term) {
              float dot = ToFloat(dots.of[term][lane], b, i);
              if constexpr (kTwoBytes) dot = Fma(256.0f, dot, ToFloat(low_dots.of[term][lane], b, i));
              total = Fma(dot, weights[lane].scales[b][term][i / 2] * x_scales[lane].of[i % 2].of[b], total);
            }
            if constexpr (kMinimum) total = Fma(weights[lane].minima[b][i / 2], x_sums[lane].of[i % 2].of[b], total);
          }
        });
      }
    }
  }

  template <typename Warp>
  LLMI_HD static void Multiply(const Warp& warp, const typename Warp::template PerLane<Weights>& weights,
                               const typename Warp::template PerLane<XCodes>& x_codes, int b, Dots<Warp>* dots) {
    typename Warp::template PerLane<WideMatrixA> a;
    typename Warp::template PerLane<WideMatrixB> x;
    warp.ForEachLane([&](int lane) {
      a[lane] = weights[lane].bytes[b];
      x[lane] = x_codes[lane].of[b];
    });
    if constexpr (kHalves) {
      warp.template MultiplyHalf<Codes::kSigned, 0>(a, x, dots->of[0]);
      warp.template MultiplyHalf<Codes::kSigned, 1>(a, x, dots->of[1]);
    } else {
      warp.template Multiply<Codes::kSigned>(a, x, dots->of[0]);
    }
  }
  LLMI_HD static float ToFloat(const MatrixD& d, int block, int i) {
    const float sum = __builtin_bit_cast(float, d.values[i]);
    const float factor = Codes::Factor(block);
    return factor == 1.0f ? sum - kMagicFloat : Fma(sum, 1.0f / factor, -kMagicFloat / factor);
  }

  // The lane's columns of a row.
  LLMI_HD static void LoadXCodes(const int8_t* row, int lane, XCodes* to) {
    LLMI_UNROLL
    for (int b = 0; b < kStepBlocks; ++b) {
      const int8_t* from = row + b * static_cast<int>(kBlockSize) + lane % 4 * (kHalves ? 4 : 8);
      if constexpr (kHalves) {
        const auto* words = reinterpret_cast<const uint32_t*>(from);
        to->of[b] = {{words[0], words[4]}};
      } else {
        const auto two = *reinterpret_cast<const uint64_t*>(from);
        to->of[b] = {{static_cast<uint32_t>(two), static_cast<uint32_t>(two >> 32)}};
      }
    }
  }
};

}  // namespace llmi::cuda

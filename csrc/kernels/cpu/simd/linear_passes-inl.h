// The order in which linear layers visit rows and tiles, and how they store the sums of a pass: 16 lanes = 16 output rows.
#pragma once

#include "kernels/ops/linear.h"

namespace llmi::LLMI_ISA_NAMESPACE {
namespace {

// Always inlined: the compiler drops calls of a function that only prefetches.
[[gnu::always_inline]] inline void PrefetchBytes(const uint8_t* data, int64_t num_bytes) {
  for (int64_t line = 0; line < num_bytes; line += 64) __builtin_prefetch(data + line, 0, 2);
}

// Prefetches the outputs that a pass will store, before it sums: each row of a prompt's output is in other pages, and in no cache.
template <int MR>
[[gnu::always_inline]] inline void PrefetchOutputs(const LinearArgs& args, const LinearPart& part, int64_t tile, int64_t row) {
  const float* out = args.out + row * args.out_stride + part.out_column + tile * kTileRows;
  for (int m = 0; m < MR; ++m) __builtin_prefetch(out + m * args.out_stride, 1, 3);
}

// Stores num_rows rows of the last tile if the weights end inside it. Rare, so all passes share one function.
[[gnu::noinline]] void StoreEdge(const LinearArgs& args, const LinearPart& part, int64_t column, const float* lanes, int num_rows,
                                 float* out) {
  for (int m = 0; m < num_rows; ++m, lanes += kTileRows, out += args.out_stride) {
    for (int64_t lane = 0; lane < part.weights.num_rows - column; ++lane) {
      const float biased = part.bias != nullptr ? lanes[lane] + part.bias[column + lane] : lanes[lane];
      out[lane] = args.accumulate ? out[lane] + biased : biased;
    }
  }
}

// Stores a tile that has 16 rows of weights. Always inlined and unrolled: registers that are passed to a call or indexed go through memory.
template <int MR>
[[gnu::always_inline]] inline void StoreWholeTile(const LinearArgs& args, const LinearPart& part, int64_t tile, int64_t row,
                                                  const F32x16 (&values)[MR]) {
  const int64_t column = tile * kTileRows;
  float* out = args.out + row * args.out_stride + part.out_column + column;
  const F32x16 bias = part.bias != nullptr ? Load(part.bias + column) : Zero();
#pragma GCC unroll 8
  for (int m = 0; m < MR; ++m, out += args.out_stride) {
    const F32x16 value = part.bias != nullptr ? Add(values[m], bias) : values[m];
    Store(out, args.accumulate ? Add(Load(out), value) : value);
  }
}

// Stores a tile that may be the last one, with fewer than 16 rows of weights.
template <int MR>
[[gnu::always_inline]] inline void StoreTile(const LinearArgs& args, const LinearPart& part, int64_t tile, int64_t row,
                                             const F32x16 (&values)[MR]) {
  const int64_t column = tile * kTileRows;
  if (part.weights.num_rows - column >= kTileRows) return StoreWholeTile(args, part, tile, row, values);
  float* out = args.out + row * args.out_stride + part.out_column + column;
  float lanes[MR][kTileRows];
#pragma GCC unroll 8
  for (int m = 0; m < MR; ++m) Store(lanes[m], values[m]);
  StoreEdge(args, part, column, lanes[0], MR, out);
}

// Stores NT tiles, `stride` tiles apart. Only the last of them can be the last one of the weights.
template <int NT, int MR>
[[gnu::always_inline]] inline void StoreTiles(const LinearArgs& args, const LinearPart& part, int64_t first_tile, int64_t stride,
                                              int64_t row, const F32x16 (&values)[NT][MR]) {
#pragma GCC unroll 4
  for (int n = 0; n < NT - 1; ++n) StoreWholeTile(args, part, first_tile + n * stride, row, values[n]);
  StoreTile(args, part, first_tile + (NT - 1) * stride, row, values[NT - 1]);
}

// Calls pass<num_rows>(), one pass over all rows, for num_rows of kMost or fewer; nothing if it is 0. A second pass, which reads and
// unpacks the weights again, would cost as much as two rows.
template <int kMost, typename Pass>
void WithRows(int64_t num_rows, const Pass& pass) {
  if constexpr (kMost > 0) {
    if (num_rows == kMost) return pass.template operator()<kMost>();
    WithRows<kMost - 1>(num_rows, pass);
  }
}

// Splits num_rows evenly into passes of at most kMost rows: pass<MR>(row).
template <int kMost, typename Pass>
void InPasses(int64_t num_rows, const Pass& pass) {
  const int64_t num_passes = (num_rows + kMost - 1) / kMost;
  for (int64_t i = 0; i < num_passes; ++i) {
    const int64_t row = num_rows * i / num_passes;
    WithRows<kMost>(num_rows * (i + 1) / num_passes - row, [&]<int MR>() { pass.template operator()<MR>(row); });
  }
}

// All tiles, NT at a time: pass<NT>(tile, stride), and pass<1> for the remaining tiles.
// The NT tiles are a stride apart, so that each of the NT streams of weights continues with its next tile: what the hardware prefetcher
// reads ahead is used, and no stream restarts after the few KB of a tile.
template <int NT, typename Pass>
void InStreams(int64_t tile_begin, int64_t tile_end, const Pass& pass) {
  const int64_t stride = (tile_end - tile_begin) / NT;
  for (int64_t tile = tile_begin; tile < tile_begin + stride; ++tile) pass.template operator()<NT>(tile, stride);
  for (int64_t tile = tile_begin + NT * stride; tile < tile_end; ++tile) pass.template operator()<1>(tile, 1);
}

// All rows of all tiles, kMost rows of NT tiles at a time: pass<NT, MR>(tile, stride, row).
template <int NT, int kMost, typename Pass>
void FloatPassesOf(int64_t num_rows, int64_t tile_begin, int64_t tile_end, const Pass& pass) {
  InStreams<NT>(tile_begin, tile_end, [&]<int kTiles>(int64_t tile, int64_t stride) {
    InPasses<kMost>(num_rows, [&]<int MR>(int64_t row) { pass.template operator()<kTiles, MR>(tile, stride, row); });
  });
}

// The same with as many rows and tiles at once as registers allow.
template <typename Pass>
void FloatPasses(int64_t num_rows, int64_t tile_begin, int64_t tile_end, const Pass& pass) {
  if (num_rows > kFloatRowsAlone) return FloatPassesOf<FloatTilesAtOnce(kFloatRows), kFloatRows>(num_rows, tile_begin, tile_end, pass);
  WithRows<kFloatRowsAlone>(num_rows, [&]<int kRows>() {
    InStreams<FloatTilesAtOnce(kRows)>(tile_begin, tile_end, [&]<int kTiles>(int64_t tile, int64_t stride) {
      if constexpr (kTiles > 1 || kRows <= kFloatRows) {
        pass.template operator()<kTiles, kRows>(tile, stride, 0);
      } else {
        InPasses<kFloatRows>(kRows, [&]<int MR>(int64_t row) { pass.template operator()<kTiles, MR>(tile, stride, row); });
      }
    });
  });
}

}  // namespace
}  // namespace llmi::LLMI_ISA_NAMESPACE

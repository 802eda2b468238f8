// linear_float over 16 lanes = 16 output rows: weights and input are floats, summed in blocks of 32 columns (kernels/ops/linear.h).
#pragma once

#include "kernels/cpu/simd/linear_passes-inl.h"

namespace llmi::LLMI_ISA_NAMESPACE {
namespace {

template <PackedType T>
F32x16 LoadWeights(const uint8_t* tile, int64_t k) {
  if constexpr (T == PackedType::kF32) return Load(reinterpret_cast<const float*>(tile) + k * kTileRows);
  const uint16_t* halves = reinterpret_cast<const uint16_t*>(tile) + k * kTileRows;
  return T == PackedType::kF16 ? LoadHalf(halves) : LoadBfloat16EvenOdd(halves);
}

// Sums over columns that LoadWeights loaded, put into the order of the tile's rows.
template <PackedType T>
F32x16 SumsInOrder(F32x16 sums) {
  return T == PackedType::kBF16 ? InOrder(sums) : sums;
}

// Multiplies column k of NT tiles, stride_bytes apart, with column k of MR rows of x. kBegins: the products are the sums; else they are
// added to them.
template <PackedType T, bool kBegins, int NT, int MR>
[[gnu::always_inline]] inline void AddColumn(const LinearArgs& args, const uint8_t* tile, int64_t stride_bytes, const float* x, int64_t k,
                                             F32x16 (&sums)[NT][MR]) {
  const auto add = [&](F32x16 weights, F32x16 value, F32x16* sum) { *sum = kBegins ? Mul(weights, value) : Fma(weights, value, *sum); };
  // Converting one tile after the other needs one or two registers; converting all tiles at once needs more than the CPU has.
  if constexpr (NT > MR && T != PackedType::kF32) {
    F32x16 values[MR];
    for (int m = 0; m < MR; ++m) values[m] = Set1(x[m * args.x_stride + k]);
    for (int n = 0; n < NT; ++n) {
      const F32x16 weights = LoadWeights<T>(tile + n * stride_bytes, k);
      for (int m = 0; m < MR; ++m) add(weights, values[m], &sums[n][m]);
    }
  } else {
    F32x16 weights[NT];
    for (int n = 0; n < NT; ++n) weights[n] = LoadWeights<T>(tile + n * stride_bytes, k);
    for (int m = 0; m < MR; ++m) {
      const F32x16 value = Set1(x[m * args.x_stride + k]);
      for (int n = 0; n < NT; ++n) add(weights[n], value, &sums[n][m]);
    }
  }
}

// With two streams of weights or more the hardware prefetcher is enough. A single stream is prefetched in the first pass over a tile, so
// that reading overlaps with the arithmetic of all rows; this saves a third of the time.
constexpr int64_t kFloatPrefetchBytes = 16 * 1024;
template <PackedType T, int NT>
[[gnu::always_inline]] inline void PrefetchStream(const uint8_t* tile, int64_t column, int64_t row) {
  if (NT > 1 || row > 0) return;
  PrefetchBytes(tile + PackedTileBytes(T, column) + kFloatPrefetchBytes, PackedTileBytes(T, kBlockSize));
}

// NT tiles x MR rows at once: enough independent chains of fma to hide their latency, and few enough to stay in registers
// (the instruction set's FloatTilesAtOnce). The accumulators of earlier blocks may be in memory.
template <PackedType T, int NT, int MR>
[[gnu::noinline, gnu::noclone]] void FloatTiles(const LinearArgs& args, const LinearPart& part, int64_t first_tile, int64_t stride,
                                                int64_t row) {
  const int64_t num_cols = part.weights.num_cols;
  const int64_t tile_bytes = PackedTileBytes(T, num_cols);
  const uint8_t* tile = part.weights.data + first_tile * tile_bytes;
  for (int n = 0; n < NT; ++n) PrefetchOutputs<MR>(args, part, first_tile + n * stride, row);
  F32x16 accumulators[NT][MR];
  for (int n = 0; n < NT; ++n) {
    for (int m = 0; m < MR; ++m) accumulators[n][m] = Zero();
  }
  const float* x = args.x + row * args.x_stride;
  for (int64_t begin = 0; begin < num_cols; begin += kBlockSize) {
    PrefetchStream<T, NT>(tile, begin, row);
    // A block's sum begins with its first product, not with an fma onto zero. The two differ only in the sign of a zero, which the
    // addition to the accumulators removes. Setting registers to zero would cost 2 % of the time.
    F32x16 sums[NT][MR];
    AddColumn<T, true>(args, tile, stride * tile_bytes, x, begin, sums);
    const int64_t end = begin + kBlockSize;
    if (end <= num_cols) {  // a loop of constant length: otherwise the compiler keeps the sums in memory
      for (int64_t k = begin + 1; k < end; ++k) AddColumn<T, false>(args, tile, stride * tile_bytes, x, k, sums);
    } else {
      for (int64_t k = begin + 1; k < num_cols; ++k) AddColumn<T, false>(args, tile, stride * tile_bytes, x, k, sums);
    }
    for (int n = 0; n < NT; ++n) {
      for (int m = 0; m < MR; ++m) accumulators[n][m] = Add(accumulators[n][m], sums[n][m]);
    }
  }
  for (int n = 0; n < NT; ++n) {
    for (int m = 0; m < MR; ++m) accumulators[n][m] = SumsInOrder<T>(accumulators[n][m]);
  }
  StoreTiles(args, part, first_tile, stride, row, accumulators);
}

template <PackedType T>
void FloatPart(const LinearArgs& args, const LinearPart& part, int64_t tile_begin, int64_t tile_end) {
  FloatPasses(args.num_rows, tile_begin, tile_end,
              [&]<int NT, int MR>(int64_t tile, int64_t stride, int64_t row) { FloatTiles<T, NT, MR>(args, part, tile, stride, row); });
}

}  // namespace

void linear_float(const LinearArgs& args, const LinearPart& part, int64_t tile_begin, int64_t tile_end) {
  if (part.weights.type == PackedType::kF32) return FloatPart<PackedType::kF32>(args, part, tile_begin, tile_end);
  if (part.weights.type == PackedType::kF16) return FloatPart<PackedType::kF16>(args, part, tile_begin, tile_end);
  FloatPart<PackedType::kBF16>(args, part, tile_begin, tile_end);
}

}  // namespace llmi::LLMI_ISA_NAMESPACE

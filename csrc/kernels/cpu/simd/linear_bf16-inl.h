// linear_bf16 over 16 lanes: layers of bf16 weights by dots of bf16 pairs, one chain of them per sum (kernels/ops/linear.h).
#pragma once

#include "kernels/cpu/simd/bf16_dots-inl.h"
#include "kernels/cpu/simd/linear_passes-inl.h"

namespace llmi::LLMI_ISA_NAMESPACE {
namespace {

// Sums NT tiles, `stride` elements apart, times MR rows of x, num_cols apart. Not inlined: see FlushSubnormals.
template <int NT, int MR>
[[gnu::noinline]] void SumPairs(const uint16_t* tile, int64_t stride, int64_t num_cols, const uint16_t* x, F32x16 (&out)[NT][MR]) {
  F32x16 sums[NT][MR];
  for (int n = 0; n < NT; ++n) {
    for (int m = 0; m < MR; ++m) sums[n][m] = Zero();
  }
  for (int64_t k = 0; k < num_cols; k += 2) {
    F32x16 weights[NT];
    for (int n = 0; n < NT; ++n) weights[n] = LoadColumnPair(tile + n * stride + k * kTileRows);
    for (int m = 0; m < MR; ++m) {
      const F32x16 pair = Set1Pair(x + m * num_cols + k);
      for (int n = 0; n < NT; ++n) sums[n][m] = DotPairs(weights[n], pair, sums[n][m]);
    }
  }
  for (int n = 0; n < NT; ++n) {
    for (int m = 0; m < MR; ++m) out[n][m] = sums[n][m];
  }
}

template <int NT, int MR>
void Bf16Tiles(const LinearArgs& args, const LinearPart& part, int64_t tile, int64_t stride, int64_t row) {
  const int64_t num_cols = part.weights.num_cols;
  const int64_t tile_size = kTileRows * num_cols;
  for (int n = 0; n < NT; ++n) PrefetchOutputs<MR>(args, part, tile + n * stride, row);
  F32x16 sums[NT][MR];
  {
    [[maybe_unused]] const FlushSubnormals<true> flush;
    SumPairs<NT, MR>(reinterpret_cast<const uint16_t*>(part.weights.data) + tile * tile_size, stride * tile_size, num_cols,
                     args.x_bf16 + row * num_cols, sums);
  }
  StoreTiles(args, part, tile, stride, row, sums);
}

}  // namespace

void linear_bf16(const LinearArgs& args, const LinearPart& part, int64_t tile_begin, int64_t tile_end) {
  FloatPasses(args.num_rows, tile_begin, tile_end,
              [&]<int NT, int MR>(int64_t tile, int64_t stride, int64_t row) { Bf16Tiles<NT, MR>(args, part, tile, stride, row); });
}

}  // namespace llmi::LLMI_ISA_NAMESPACE

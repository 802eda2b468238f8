// linear_part over 16 lanes = 16 output rows. The instruction set supplies `BlockDots`, the exact integer dots
// of one packed block with MR quantised rows; all floating-point steps are here, in the order of kernels/linear.h.
#pragma once

#include "kernels/cpu/simd/linear_passes.h"

namespace llmi::LLMI_ISA_NAMESPACE {
namespace {

// Weights are asked for so far ahead that a few rows' arithmetic hides behind their reading: the processor's own prefetching
// ends at each 4 KB page. Past a thread's task lies what it takes next.
constexpr int64_t kPrefetchBytes = 40 * 1024;
// Rows whose arithmetic is over so soon that the processor alone keeps more reads under way than such requests leave it. Super-blocks
// take longer to unpack.
template <PackedType T>
constexpr int kRowsReadUnasked = IsSuperBlockPacked(T) ? 0 : 2;
// Always inlined: calls of what does no more than prefetch are dropped.
[[gnu::always_inline]] inline void PrefetchWeights(const uint8_t* data, int64_t num_bytes) {
  for (int64_t line = 0; line < num_bytes; line += 64) __builtin_prefetch(data + line, 0, 2);
}

// What the scales of a super-block's blocks have in common.
template <PackedType T>
struct SuperScales {
  explicit SuperScales(const uint8_t* group) {
    if constexpr (IsSuperBlockPacked(T)) {
      const auto* halves = reinterpret_cast<const uint16_t*>(group + PackedScaleOffset(T, PackedGroupBlocks(T)));
      scale = LoadHalf(halves);
      if constexpr (HasMinimumPacked(T)) minimum = LoadHalf(halves + 16);
    }
  }
  F32x16 scale = Zero();
  F32x16 minimum = Zero();
};

// The dots of a group's block, scaled and added to the sums of MR rows; its minima to `minima`, which may be those sums.
template <PackedType T, int MR, bool kFine>
inline void AddBlock(const uint8_t* group, int64_t block, const SuperScales<T>& super, const BlockOfRows<MR>& x, F32x16* sums,
                     F32x16* minima) {
  constexpr bool kMinimum = HasMinimumPacked(T);
  constexpr int kScales = T == PackedType::kQ6K ? 2 : 1;
  constexpr int kDots = kFine ? 2 : kScales;
  F32x16 dots[MR * kDots];
  BlockDots<T, MR, kDots>(group + block * PackedCodeBytes(T), x, dots);
  const uint8_t* own = group + PackedScaleOffset(T, block);
  F32x16 scales[kScales];
  F32x16 minimum = Zero();
  if constexpr (IsSuperBlockPacked(T)) {  // each product is exact
    const auto* bytes = reinterpret_cast<const int8_t*>(own);
    for (int i = 0; i < kScales; ++i) scales[i] = Mul(super.scale, LoadInt8(bytes + 16 * i));
    if constexpr (kMinimum) minimum = Mul(super.minimum, LoadInt8(bytes + 16));
  } else {
    const auto* halves = reinterpret_cast<const uint16_t*>(own);
    scales[0] = LoadHalf(halves);
    if constexpr (kMinimum) minimum = LoadHalf(halves + 16);
  }
  for (int m = 0; m < MR; ++m) {
    if constexpr (kFine) {
      const F32x16 first = Mul(dots[2 * m], Set1(x.FineScale(m, 0)));
      const F32x16 x_second = Set1(x.FineScale(m, 1));
      if constexpr (kScales == 2) {
        sums[m] = Fma(first, scales[0], sums[m]);
        sums[m] = Fma(Mul(dots[2 * m + 1], x_second), scales[1], sums[m]);
      } else {
        sums[m] = Fma(Fma(dots[2 * m + 1], x_second, first), scales[0], sums[m]);
      }
    } else {
      const F32x16 x_scale = Set1(x.Scale(m));
      for (int i = 0; i < kDots; ++i) sums[m] = Fma(dots[m * kDots + i], Mul(scales[i], x_scale), sums[m]);
    }
    if constexpr (kMinimum) minima[m] = Fma(minimum, Set1(x.Sum(m)), minima[m]);
  }
}

// Not inlined: each pass wants all registers for itself.
template <PackedType T, int MR, bool kFine>
[[gnu::noinline]] void QuantizedTile(const LinearArgs& args, const LinearPart& part, int64_t tile, int64_t row) {
  const int64_t num_blocks = part.weights.num_cols / kBlockSize;
  constexpr int64_t kBlocks = PackedGroupBlocks(T);
  constexpr int64_t kShare = PackedGroupBytes(T) / kBlocks;
  const uint8_t* group = part.weights.data + tile * PackedTileBytes(T, part.weights.num_cols);
  BlockOfRows<MR> x(args.quantized, row);
  F32x16 sums[MR];
#pragma GCC unroll 8
  for (int m = 0; m < MR; ++m) sums[m] = Zero();
  for (int64_t first = 0; first < num_blocks; first += kBlocks, group += PackedGroupBytes(T)) {
    const SuperScales<T> super(group);
    for (int64_t block = 0; block < kBlocks; ++block, x.template Next<kFine>()) {
      if (MR > kRowsReadUnasked<T> && row == 0) PrefetchWeights(group + block * kShare + kPrefetchBytes, kShare);
      AddBlock<T, MR, kFine>(group, block, super, x, sums, sums);
    }
  }
  StoreTile(args, part, tile, row, sums);
}

// So many rows of x stay in the first-level cache while the task's tiles pass by.
constexpr int64_t kRowsInCache = 48;

// All rows of each tile, so many at a time, in passes: pass<MR>(tile, row).
template <int kMost, typename Pass>
void TileByTile(int64_t num_rows, int64_t tile_begin, int64_t tile_end, const Pass& pass) {
  for (int64_t first = 0; first < num_rows; first += kRowsInCache) {
    const int64_t rows = num_rows - first < kRowsInCache ? num_rows - first : kRowsInCache;
    for (int64_t tile = tile_begin; tile < tile_end; ++tile) {
      InPasses<kMost>(rows, [&]<int MR>(int64_t row) { pass.template operator()<MR>(tile, first + row); });
    }
  }
}

template <PackedType T, bool kFine>
void QuantizedTiles(const LinearArgs& args, const LinearPart& part, int64_t tile_begin, int64_t tile_end) {
  TileByTile<kLinearRows>(args.num_rows, tile_begin, tile_end,
                          [&]<int MR>(int64_t tile, int64_t row) { QuantizedTile<T, MR, kFine>(args, part, tile, row); });
}

template <PackedType T>
void QuantizedPart(const LinearArgs& args, const LinearPart& part, int64_t tile_begin, int64_t tile_end) {
  if (args.quantized.fine) return QuantizedTiles<T, true>(args, part, tile_begin, tile_end);
  QuantizedTiles<T, false>(args, part, tile_begin, tile_end);
}

template <PackedType T>
F32x16 LoadWeights(const uint8_t* tile, int64_t k) {
  if constexpr (T == PackedType::kF32) return Load(reinterpret_cast<const float*>(tile) + k * kTileRows);
  const uint16_t* halves = reinterpret_cast<const uint16_t*>(tile) + k * kTileRows;
  return T == PackedType::kF16 ? LoadHalf(halves) : LoadBfloat16EvenOdd(halves);
}

// Sums over columns of LoadWeights, as rows of the tile.
template <PackedType T>
F32x16 SumsInOrder(F32x16 sums) {
  return T == PackedType::kBF16 ? InOrder(sums) : sums;
}

// Column k of NT tiles that lie stride_bytes apart, times column k of MR rows.
template <PackedType T, int NT, int MR>
[[gnu::always_inline]] inline void AddColumn(const LinearArgs& args, const uint8_t* tile, int64_t stride_bytes, const float* x, int64_t k,
                                             F32x16 (&sums)[NT][MR]) {
  // Weights that are converted one tile after the other need a register or two, all tiles' at once need more than there are.
  if constexpr (NT > MR && T != PackedType::kF32) {
    F32x16 values[MR];
    for (int m = 0; m < MR; ++m) values[m] = Set1(x[m * args.x_stride + k]);
    for (int n = 0; n < NT; ++n) {
      const F32x16 weights = LoadWeights<T>(tile + n * stride_bytes, k);
      for (int m = 0; m < MR; ++m) sums[n][m] = Fma(weights, values[m], sums[n][m]);
    }
  } else {
    F32x16 weights[NT];
    for (int n = 0; n < NT; ++n) weights[n] = LoadWeights<T>(tile + n * stride_bytes, k);
    for (int m = 0; m < MR; ++m) {
      const F32x16 value = Set1(x[m * args.x_stride + k]);
      for (int n = 0; n < NT; ++n) sums[n][m] = Fma(weights[n], value, sums[n][m]);
    }
  }
}

// Four streams of weights the processor reads ahead by itself. Fewer are asked for in the first pass over a tile, so that what comes
// hides behind all rows' arithmetic: from three rows on that is a third of the time.
constexpr int kStreamsReadAhead = 4;
constexpr int64_t kFloatPrefetchBytes = 16 * 1024;
template <PackedType T, int NT>
[[gnu::always_inline]] inline void AskAhead(const uint8_t* tile, int64_t stride_bytes, int64_t column, int64_t row) {
  if (NT >= kStreamsReadAhead || row > 0) return;
  const uint8_t* ahead = tile + PackedTileBytes(T, column) + kFloatPrefetchBytes;
  for (int n = 0; n < NT; ++n) PrefetchWeights(ahead + n * stride_bytes, PackedTileBytes(T, kBlockSize));
}

// NT tiles x MR rows at once: enough independent chains of fma to hide their latency, and few enough to stay in registers
// (the instruction set's FloatTilesAtOnce); what the blocks before gave may lie in memory.
template <PackedType T, int NT, int MR>
void FloatTiles(const LinearArgs& args, const LinearPart& part, int64_t first_tile, int64_t stride, int64_t row) {
  const int64_t num_cols = part.weights.num_cols;
  const int64_t tile_bytes = PackedTileBytes(T, num_cols);
  const uint8_t* tile = part.weights.data + first_tile * tile_bytes;
  F32x16 accumulators[NT][MR];
  for (int n = 0; n < NT; ++n) {
    for (int m = 0; m < MR; ++m) accumulators[n][m] = Zero();
  }
  const float* x = args.x + row * args.x_stride;
  for (int64_t begin = 0; begin < num_cols; begin += kBlockSize) {
    AskAhead<T, NT>(tile, stride * tile_bytes, begin, row);
    F32x16 sums[NT][MR];
    for (int n = 0; n < NT; ++n) {
      for (int m = 0; m < MR; ++m) sums[n][m] = Zero();
    }
    const int64_t end = begin + kBlockSize;
    if (end <= num_cols) {  // a loop of known length: else the compiler keeps the sums in memory
      for (int64_t k = begin; k < end; ++k) AddColumn<T>(args, tile, stride * tile_bytes, x, k, sums);
    } else {
      for (int64_t k = begin; k < num_cols; ++k) AddColumn<T>(args, tile, stride * tile_bytes, x, k, sums);
    }
    for (int n = 0; n < NT; ++n) {
      for (int m = 0; m < MR; ++m) accumulators[n][m] = Add(accumulators[n][m], sums[n][m]);
    }
  }
  for (int n = 0; n < NT; ++n) {
    for (int m = 0; m < MR; ++m) accumulators[n][m] = SumsInOrder<T>(accumulators[n][m]);
    StoreTile(args, part, first_tile + n * stride, row, accumulators[n]);
  }
}

template <PackedType T>
void FloatPart(const LinearArgs& args, const LinearPart& part, int64_t tile_begin, int64_t tile_end) {
  FloatPasses(args.num_rows, tile_begin, tile_end,
              [&]<int NT, int MR>(int64_t tile, int64_t stride, int64_t row) { FloatTiles<T, NT, MR>(args, part, tile, stride, row); });
}

}  // namespace

void linear_part(const LinearArgs& args, const LinearPart& part, int64_t tile_begin, int64_t tile_end) {
  switch (part.weights.type) {
    case PackedType::kF32: return FloatPart<PackedType::kF32>(args, part, tile_begin, tile_end);
    case PackedType::kF16: return FloatPart<PackedType::kF16>(args, part, tile_begin, tile_end);
    case PackedType::kBF16: return FloatPart<PackedType::kBF16>(args, part, tile_begin, tile_end);
    case PackedType::kF16Rows:
    case PackedType::kBF16Rows: return;  // only a device's
    case PackedType::kQ4: return QuantizedPart<PackedType::kQ4>(args, part, tile_begin, tile_end);
    case PackedType::kQ4Min: return QuantizedPart<PackedType::kQ4Min>(args, part, tile_begin, tile_end);
    case PackedType::kQ4K: return QuantizedPart<PackedType::kQ4K>(args, part, tile_begin, tile_end);
    case PackedType::kQ5: return QuantizedPart<PackedType::kQ5>(args, part, tile_begin, tile_end);
    case PackedType::kQ6K: return QuantizedPart<PackedType::kQ6K>(args, part, tile_begin, tile_end);
    case PackedType::kQ8: return QuantizedPart<PackedType::kQ8>(args, part, tile_begin, tile_end);
  }
}

}  // namespace llmi::LLMI_ISA_NAMESPACE

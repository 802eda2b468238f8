// linear_quantized over 16 lanes = 16 output rows. The instruction set supplies `BlockDots`, the exact integer dots
// of one packed block with MR quantised rows; all floating-point steps are here, in the order of kernels/ops/linear.h.
#pragma once

#include "kernels/cpu/simd/linear_passes-inl.h"

namespace llmi::LLMI_ISA_NAMESPACE {
namespace {

// Distance of explicit prefetches: far enough that the arithmetic of a few rows hides behind reading. The hardware prefetcher stops at each
// 4 KB page and resumes in the next one. The bytes after a thread's task belong to its next task.
constexpr int64_t kPrefetchBytes = 7 * 1024;
// True if the kernel prefetches explicitly. False for one row of plain blocks on CPUs where the hardware prefetcher alone is faster
// (the instruction set's kHardwarePrefetchesOneRow). Super-blocks take longer to unpack, so they are always prefetched.
template <PackedType T, int MR>
constexpr bool kPrefetchesWeights = MR > 1 || IsSuperBlockPacked(T) || !kHardwarePrefetchesOneRow;

// The factors d and d_min that all scales of a super-block share.
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

// Adds the scaled dots of one block to the sums of MR rows, and the minima to `minima`, which may be the same array.
template <PackedType T, int MR, ActivationForm kForm>
inline void AddBlock(const uint8_t* group, int64_t block, const SuperScales<T>& super, const ActivationBlock<MR>& x, F32x16* sums,
                     F32x16* minima) {
  constexpr bool kMinimum = HasMinimumPacked(T);
  constexpr int kScales = T == PackedType::kQ6K ? 2 : 1;
  constexpr bool kFine = kForm == ActivationForm::kFine;
  constexpr int kDots = kFine ? 2 : kScales;
  F32x16 dots[MR * kDots];
  BlockDots<T, MR, kDots, kForm == ActivationForm::kTwoBytes>(group + block * PackedCodeBytes(T), x, dots);
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

// Not inlined: each pass needs all registers.
template <PackedType T, int MR, ActivationForm kForm>
[[gnu::noinline]] void QuantizedTile(const LinearArgs& args, const LinearPart& part, int64_t tile, int64_t row) {
  const int64_t num_blocks = part.weights.num_cols / kBlockSize;
  constexpr int64_t kBlocks = PackedGroupBlocks(T);
  constexpr int64_t kShare = PackedGroupBytes(T) / kBlocks;
  const uint8_t* group = part.weights.data + tile * PackedTileBytes(T, part.weights.num_cols);
  ActivationBlock<MR> x(args.quantized, row);
  PrefetchOutputs<MR>(args, part, tile, row);
  F32x16 sums[MR];
#pragma GCC unroll 8
  for (int m = 0; m < MR; ++m) sums[m] = Zero();
  for (int64_t first = 0; first < num_blocks; first += kBlocks, group += PackedGroupBytes(T)) {
    const SuperScales<T> super(group);
    for (int64_t block = 0; block < kBlocks; ++block, x.template Next<kForm>()) {
      if (kPrefetchesWeights<T, MR> && row == 0) PrefetchBytes(group + block * kShare + kPrefetchBytes, kShare);
      AddBlock<T, MR, kForm>(group, block, super, x, sums, sums);
    }
  }
  StoreTile(args, part, tile, row, sums);
}

// Prefetches all rows of x before the loop. Other cores wrote them; loading them on first use would stall once per cache line.
void PrefetchRows(const QuantizedRows& x, int64_t row, int64_t num_rows) {
  const int64_t blocks = x.num_cols / kBlockSize;
  const auto prefetch = [&](const void* data, int64_t row_bytes) {
    PrefetchBytes(static_cast<const uint8_t*>(data) + row * row_bytes, num_rows * row_bytes);
  };
  prefetch(x.codes, x.num_cols);
  if (x.low != nullptr) prefetch(x.low, x.num_cols);
  prefetch(x.scales, (x.fine ? 8 : 4) * blocks);
  prefetch(x.sums, 4 * blocks);
  prefetch(x.half_sums, 8 * blocks);
}

// Runs pass<MR>(tile, row) over all tiles for kLinearRowsInCache rows at a time; a pass takes kMost rows or fewer.
template <int kMost, typename Pass>
void TileByTile(const LinearArgs& args, int64_t tile_begin, int64_t tile_end, const Pass& pass) {
  for (int64_t first = 0; first < args.num_rows; first += kLinearRowsInCache) {
    const int64_t rows = args.num_rows - first < kLinearRowsInCache ? args.num_rows - first : kLinearRowsInCache;
    PrefetchRows(args.quantized, first, rows);
    for (int64_t tile = tile_begin; tile < tile_end; ++tile) {
      InPasses<kMost>(rows, [&]<int MR>(int64_t row) { pass.template operator()<MR>(tile, first + row); });
    }
  }
}

template <PackedType T, ActivationForm kForm>
void QuantizedTiles(const LinearArgs& args, const LinearPart& part, int64_t tile_begin, int64_t tile_end) {
  TileByTile<LinearRows(T, kForm)>(args, tile_begin, tile_end,
                                   [&]<int MR>(int64_t tile, int64_t row) { QuantizedTile<T, MR, kForm>(args, part, tile, row); });
}

template <PackedType T>
void QuantizedPart(const LinearArgs& args, const LinearPart& part, int64_t tile_begin, int64_t tile_end) {
  switch (args.quantized.form()) {
    case ActivationForm::kCoarse: return QuantizedTiles<T, ActivationForm::kCoarse>(args, part, tile_begin, tile_end);
    case ActivationForm::kFine: return QuantizedTiles<T, ActivationForm::kFine>(args, part, tile_begin, tile_end);
    case ActivationForm::kTwoBytes: return QuantizedTiles<T, ActivationForm::kTwoBytes>(args, part, tile_begin, tile_end);
  }
}

}  // namespace

void linear_quantized(const LinearArgs& args, const LinearPart& part, int64_t tile_begin, int64_t tile_end) {
  switch (part.weights.type) {
    case PackedType::kF32:
    case PackedType::kF16:
    case PackedType::kBF16:
    case PackedType::kF16Rows:
    case PackedType::kBF16Rows: return;  // not quantised
    case PackedType::kQ4: return QuantizedPart<PackedType::kQ4>(args, part, tile_begin, tile_end);
    case PackedType::kQ4Min: return QuantizedPart<PackedType::kQ4Min>(args, part, tile_begin, tile_end);
    case PackedType::kQ4K: return QuantizedPart<PackedType::kQ4K>(args, part, tile_begin, tile_end);
    case PackedType::kQ5: return QuantizedPart<PackedType::kQ5>(args, part, tile_begin, tile_end);
    case PackedType::kQ6K: return QuantizedPart<PackedType::kQ6K>(args, part, tile_begin, tile_end);
    case PackedType::kQ8: return QuantizedPart<PackedType::kQ8>(args, part, tile_begin, tile_end);
  }
}

}  // namespace llmi::LLMI_ISA_NAMESPACE

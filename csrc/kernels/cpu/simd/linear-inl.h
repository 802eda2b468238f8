// linear_quantized over 16 lanes = 16 output rows. The instruction set supplies `BlockDots`, the exact integer dots
// of one packed block with MR quantised rows; all floating-point steps are here, in the order of kernels/ops/linear.h.
#pragma once

#include "kernels/cpu/simd/block_scales-inl.h"
#include "kernels/cpu/simd/linear_passes-inl.h"

namespace llmi::LLMI_ISA_NAMESPACE {
namespace {

// Distance of explicit prefetches: far enough that the arithmetic of a few rows hides behind reading. The hardware prefetcher stops at each
// 4 KB page and resumes in the next one. The bytes after a thread's task belong to its next task.
constexpr int64_t kPrefetchBytes = 7 * 1024;
// True if the kernel prefetches explicitly. False for one row of plain blocks on CPUs where the hardware prefetcher alone is faster
// (the instruction set's kHardwarePrefetchesOneRow). Super-blocks, which take longer to unpack, and codes of two bytes, whose products take
// longer, are always prefetched.
template <PackedType T, int MR, ActivationForm kForm>
constexpr bool kPrefetchesWeights = MR > 1 || IsSuperBlockPacked(T) || kForm == ActivationForm::kTwoBytes || !kHardwarePrefetchesOneRow;

// Adds the dots of MR rows with the halves of a block, each of which has a scale of its own.
template <PackedType T, int MR, ActivationForm kForm>
inline void AddHalves(const F32x16* dots, const BlockScales<T>& w, const ActivationBlock<MR>& x, F32x16* sums) {
  constexpr bool kFine = kForm == ActivationForm::kFine;
  for (int m = 0; m < MR; ++m) {
    for (int half = 0; half < 2; ++half) {
      const F32x16 dot = dots[2 * m + half];
      const F32x16 x_scale = Set1(kFine ? x.FineScale(m, half) : x.Scale(m));
      if constexpr (BlockScales<T>::kMinimum) {
        const F32x16 x_sum = Set1(static_cast<float>(x.HalfSums(m)[half]));
        sums[m] = Fma(Fma(w.minima[half], x_sum, Mul(dot, w.scales[half])), x_scale, sums[m]);
      } else if constexpr (kFine) {
        sums[m] = Fma(Mul(dot, x_scale), w.scales[half], sums[m]);
      } else {
        sums[m] = Fma(dot, Mul(w.scales[half], x_scale), sums[m]);
      }
    }
  }
}

// Adds the scaled dots of one block to the sums of MR rows, and minima of whole blocks to `minima`, which may be the same array.
template <PackedType T, int MR, ActivationForm kForm>
inline void AddBlock(const uint8_t* group, int64_t block, const SuperScales<T>& super, const CodeLookup<T>& lookup,
                     const ActivationBlock<MR>& x, F32x16* sums, F32x16* minima) {
  constexpr bool kFine = kForm == ActivationForm::kFine;
  constexpr int kDots = kFine || HasHalfScalesPacked(T) ? 2 : 1;
  F32x16 dots[MR * kDots];
  BlockDots<T, MR, kDots, kForm == ActivationForm::kTwoBytes>(group + block * PackedCodeBytes(T), lookup, x, dots);
  const BlockScales<T> w(group + PackedScaleOffset(T, block), super);
  if constexpr (HasHalfScalesPacked(T)) {
    AddHalves<T, MR, kForm>(dots, w, x, sums);
  } else {
    for (int m = 0; m < MR; ++m) {
      if constexpr (kFine) {
        const F32x16 first = Mul(dots[2 * m], Set1(x.FineScale(m, 0)));
        sums[m] = Fma(Fma(dots[2 * m + 1], Set1(x.FineScale(m, 1)), first), w.scales[0], sums[m]);
      } else {
        sums[m] = Fma(dots[m], Mul(w.scales[0], Set1(x.Scale(m))), sums[m]);
      }
      if constexpr (BlockScales<T>::kMinimum) minima[m] = Fma(w.minima[0], Set1(x.Sum(m)), minima[m]);
    }
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
  const CodeLookup<T> lookup(part.weights.table);
  PrefetchOutputs<MR>(args, part, tile, row);
  F32x16 sums[MR];
#pragma GCC unroll 8
  for (int m = 0; m < MR; ++m) sums[m] = Zero();
  for (int64_t first = 0; first < num_blocks; first += kBlocks, group += PackedGroupBytes(T)) {
    const SuperScales<T> super(group);
    for (int64_t block = 0; block < kBlocks; ++block, x.template Next<kForm>()) {
      if (kPrefetchesWeights<T, MR, kForm> && row == 0) PrefetchBytes(group + block * kShare + kPrefetchBytes, kShare);
      AddBlock<T, MR, kForm>(group, block, super, lookup, x, sums, sums);
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
    case PackedType::kQ5Min: return QuantizedPart<PackedType::kQ5Min>(args, part, tile_begin, tile_end);
    case PackedType::kQ5K: return QuantizedPart<PackedType::kQ5K>(args, part, tile_begin, tile_end);
    case PackedType::kQ2: return QuantizedPart<PackedType::kQ2>(args, part, tile_begin, tile_end);
    case PackedType::kQ2K: return QuantizedPart<PackedType::kQ2K>(args, part, tile_begin, tile_end);
    case PackedType::kQ3K: return QuantizedPart<PackedType::kQ3K>(args, part, tile_begin, tile_end);
    case PackedType::kQ6K: return QuantizedPart<PackedType::kQ6K>(args, part, tile_begin, tile_end);
    case PackedType::kTable: return QuantizedPart<PackedType::kTable>(args, part, tile_begin, tile_end);
    case PackedType::kTableK: return QuantizedPart<PackedType::kTableK>(args, part, tile_begin, tile_end);
    case PackedType::kTableExp: return QuantizedPart<PackedType::kTableExp>(args, part, tile_begin, tile_end);
    case PackedType::kQ8: return QuantizedPart<PackedType::kQ8>(args, part, tile_begin, tile_end);
    case PackedType::kW8: return QuantizedPart<PackedType::kW8>(args, part, tile_begin, tile_end);
  }
}

}  // namespace llmi::LLMI_ISA_NAMESPACE

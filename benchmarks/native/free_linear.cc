// Linear layers and norms that may reorder sums: several chains a sum, separate sums of minima, one float chain over all columns or over
// blocks of 64 instead of 32, and other register tiles.
#include "free_lanes.h"

#include "free_order.h"
#if defined(__AVX512VNNI__)
#include "kernels/cpu/avx512/block_dots-inl.h"
#else
#include "kernels/cpu/avx2/block_dots-inl.h"
#endif

// The kernels' own passes over rows, loads and prefetches, in a namespace of this file's.
#undef LLMI_ISA_NAMESPACE
#define LLMI_ISA_NAMESPACE free_order
namespace llmi::free_order {
using namespace LLMI_FREE_ISA;  // BlockDots and how many rows it takes
}
#include "kernels/cpu/simd/linear-inl.h"
#include "kernels/cpu/simd/linear_float-inl.h"

namespace llmi {
namespace free_order {
namespace {

// For whole tiles, without bias and without accumulating: the only case in the benchmark.
void StoreRow(const LinearArgs& args, const LinearPart& part, int64_t tile, int64_t row, F32x16 value) {
  Store(args.out + row * args.out_stride + part.out_column + tile * kTileRows, value);
}

template <PackedType T, int MR, bool kFine, int kChains, bool kMinimaApart>
[[gnu::noinline]] void FreeQuantizedTile(const LinearArgs& args, const LinearPart& part, int64_t tile, int64_t row) {
  constexpr bool kMinimum = HasMinimumPacked(T);
  constexpr ActivationForm kForm = kFine ? ActivationForm::kFine : ActivationForm::kCoarse;
  const int64_t num_blocks = part.weights.num_cols / kBlockSize;
  constexpr int64_t kBlockBytes = PackedGroupBytes(T);
  static_assert(PackedGroupBlocks(T) == 1);
  const uint8_t* data = part.weights.data + tile * num_blocks * kBlockBytes;
  const CodeLookup<T> lookup(part.weights.table);
  ActivationBlock<MR> x(args.quantized, row);
  PrefetchOutputs<MR>(args, part, tile, row);
  F32x16 sums[kChains][MR];
  F32x16 minima[MR];
  for (int m = 0; m < MR; ++m) {
    for (int c = 0; c < kChains; ++c) sums[c][m] = Zero();
    minima[m] = Zero();
  }
  const auto add_block = [&](F32x16* chain) {
    if (kPrefetchesWeights<T, MR, kForm> && row == 0) PrefetchBytes(data + kPrefetchBytes, kBlockBytes);
    AddBlock<T, MR, kForm>(data, 0, SuperScales<T>(data), lookup, x, chain, kMinimaApart ? minima : chain);
    data += kBlockBytes;
    x.template Next<kForm>();
  };
  int64_t block = 0;
  for (; block + kChains <= num_blocks; block += kChains) {
    for (int c = 0; c < kChains; ++c) add_block(sums[c]);
  }
  for (; block < num_blocks; ++block) add_block(sums[0]);
  for (int m = 0; m < MR; ++m) {
    F32x16 sum = sums[0][m];
    for (int c = 1; c < kChains; ++c) sum = Add(sum, sums[c][m]);
    if constexpr (kMinimum && kMinimaApart) sum = Add(sum, minima[m]);
    StoreRow(args, part, tile, row + m, sum);
  }
}

template <PackedType T, bool kFine, int kRows, int kChains, bool kMinimaApart>
void Quantized(const LinearArgs& args, const LinearPart& part, int64_t num_tiles) {
  TileByTile<kRows>(args, 0, num_tiles, [&]<int MR>(int64_t tile, int64_t row) {
    FreeQuantizedTile<T, MR, kFine, kChains, kMinimaApart>(args, part, tile, row);
  });
}

// kColumns: columns of a block that is summed separately; 0: all columns are one block. The columns of a block are dealt out to its chains
// in turn.
template <PackedType T, int NT, int MR, int kChains, int64_t kColumns>
[[gnu::noinline]] void FreeFloatTiles(const LinearArgs& args, const LinearPart& part, int64_t first_tile, int64_t stride, int64_t row) {
  const int64_t num_cols = part.weights.num_cols;
  const int64_t stride_bytes = stride * PackedTileBytes(T, num_cols);
  const uint8_t* tile = part.weights.data + first_tile * PackedTileBytes(T, num_cols);
  const float* x = args.x + row * args.x_stride;
  const int64_t columns = kColumns == 0 ? num_cols : kColumns;
  for (int n = 0; n < NT; ++n) PrefetchOutputs<MR>(args, part, first_tile + n * stride, row);
  F32x16 totals[NT][MR];
  for (int64_t begin = 0; begin < num_cols; begin += columns) {
    F32x16 sums[kChains][NT][MR];
    for (int c = 0; c < kChains; ++c) AddColumn<T, true>(args, tile, stride_bytes, x, begin + c, sums[c]);
    for (int64_t k = begin + kChains; k < begin + columns; k += kChains) {
      if (k % kBlockSize < kChains) PrefetchStream<T, NT>(tile, k, row);
      for (int c = 0; c < kChains; ++c) AddColumn<T, false>(args, tile, stride_bytes, x, k + c, sums[c]);
    }
    for (int n = 0; n < NT; ++n) {
      for (int m = 0; m < MR; ++m) {
        for (int c = 1; c < kChains; ++c) sums[0][n][m] = Add(sums[0][n][m], sums[c][n][m]);
        totals[n][m] = begin == 0 ? sums[0][n][m] : Add(totals[n][m], sums[0][n][m]);
      }
    }
  }
  for (int n = 0; n < NT; ++n) {
    for (int m = 0; m < MR; ++m) StoreRow(args, part, first_tile + n * stride, row + m, SumsInOrder<T>(totals[n][m]));
  }
}

template <PackedType T, int NT, int kRows, int kChains = 1, int64_t kColumns = 0>
void Float(const LinearArgs& args, const LinearPart& part, int64_t num_tiles) {
  FloatPassesOf<NT, kRows>(args.num_rows, 0, num_tiles, [&]<int kTiles, int MR>(int64_t tile, int64_t stride, int64_t row) {
    FreeFloatTiles<T, kTiles, MR, kChains, kColumns>(args, part, tile, stride, row);
  });
}

template <PackedType T, bool kFine>
std::vector<LinearVariant> QuantizedVariants() {
  return {Quantized<T, kFine, kLinearRows, 1, true>, Quantized<T, kFine, kLinearRows, 2, false>, Quantized<T, kFine, kLinearRows, 2, true>,
          Quantized<T, kFine, kLinearRows / 2, 2, true>, Quantized<T, kFine, kLinearRows / 2, 4, false>};
}

template <int kChains>
void Norm(const NormArgs& args) {
  for (int64_t row = 0; row < args.num_rows; ++row) {
    const float* x = args.x + row * args.x_stride;
    float* out = args.out + row * args.out_stride;
    F32x16 sums[kChains];
    for (F32x16& sum : sums) sum = Zero();
    for (int64_t i = 0; i < args.size; i += 16 * kChains) {
      for (int c = 0; c < kChains && i + 16 * c < args.size; ++c) {
        const F32x16 value = Load(x + i + 16 * c);
        sums[c] = Fma(value, value, sums[c]);
      }
    }
    for (int c = 1; c < kChains; ++c) sums[0] = Add(sums[0], sums[c]);
    const F32x16 inverse = Set1(1.0f / __builtin_sqrtf(FoldSum(sums[0]) / static_cast<float>(args.size) + args.eps));
    for (int64_t i = 0; i < args.size; i += 16) Store(out + i, Mul(Mul(Load(x + i), inverse), Load(args.weight + i)));
  }
}

}  // namespace
}  // namespace free_order

using namespace free_order;

std::vector<LinearVariant> FreeLinears(PackedType type, bool fine) {
  if (type == PackedType::kQ4Min)
    return fine ? QuantizedVariants<PackedType::kQ4Min, true>() : QuantizedVariants<PackedType::kQ4Min, false>();
  if (type == PackedType::kQ8) return fine ? QuantizedVariants<PackedType::kQ8, true>() : QuantizedVariants<PackedType::kQ8, false>();
  if (type != PackedType::kBF16) return {};
  constexpr PackedType kType = PackedType::kBF16;
#if defined(__AVX512VNNI__)
  return {Float<kType, 4, 4>,    Float<kType, 4, 6>,    Float<kType, 3, 8>,        Float<kType, 2, 8>,
          Float<kType, 2, 4, 2>, Float<kType, 4, 2, 2>, Float<kType, 4, 6, 1, 64>, Float<kType, 3, 8, 1, 64>};
#else
  return {Float<kType, 4, 1>,    Float<kType, 2, 2>,        Float<kType, 1, 4>,       Float<kType, 1, 6>,
          Float<kType, 2, 1, 2>, Float<kType, 4, 1, 1, 64>, Float<kType, 1, 6, 1, 64>};
#endif
}

std::vector<NormVariant> FreeNorms() { return {Norm<2>, Norm<4>}; }

}  // namespace llmi

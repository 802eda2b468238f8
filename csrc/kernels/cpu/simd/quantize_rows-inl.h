// quantize_rows over 16 lanes. Contract: kernels/ops/quantize_rows.h; definition: kernels/cpu/reference/quantize_block.h.
#pragma once

#include "kernels/ops/quantize_rows.h"

namespace llmi::LLMI_ISA_NAMESPACE {
namespace {

// Stores the codes of 16 values y, |y| <= 127; returns the sum of the codes (with low bytes: of the whole codes).
int32_t StoreCodes(F32x16 y, int64_t index, const QuantizedRows& out) {
  const int32_t sum = StoreInt8(out.codes + index, y);
  return out.low == nullptr ? sum : 256 * sum + StoreInt8(out.low + index, LowBytes(y));
}

void QuantizeBlock(const float* x, int64_t block, const QuantizedRows& out) {
  const F32x16 a = Load(x + block * kBlockSize);
  const F32x16 b = Load(x + block * kBlockSize + 16);
  const AbsMax first =
      out.fine ? FoldAbsMax(Abs(a), Fma(a, Zero(), Zero())) : FoldAbsMax(Max(Abs(a), Abs(b)), Fma(b, Zero(), Fma(a, Zero(), Zero())));
  const AbsMax second = out.fine ? FoldAbsMax(Abs(b), Fma(b, Zero(), Zero())) : first;
  const int32_t sum0 = StoreCodes(first.finite ? Mul(a, first.inverse) : Zero(), block * kBlockSize, out);
  const int32_t sum1 = StoreCodes(second.finite ? Mul(b, second.inverse) : Zero(), block * kBlockSize + 16, out);
  if (out.fine) {
    out.scales[2 * block] = first.scale;
    out.scales[2 * block + 1] = second.scale;
    out.sums[block] = first.scale * static_cast<float>(sum0) + second.scale * static_cast<float>(sum1);
  } else {
    const float scale = out.low != nullptr ? first.scale * kLowStep : first.scale;
    out.scales[block] = scale;
    out.sums[block] = scale * static_cast<float>(sum0 + sum1);
  }
  out.half_sums[2 * block] = sum0;
  out.half_sums[2 * block + 1] = sum1;
}

// Stores the sums of 16 times 16 codes from `column` on; returns them as floats, exactly.
template <bool kLow>
F32x16 StoreHalfSums(int64_t column, const QuantizedRows& out) {
  int32_t* sums = out.half_sums + column / 16;
  const F32x16 high = StoreSumsOfCodes(out.codes + column, sums);
  if constexpr (!kLow) return high;
  int32_t low_sums[16];
  const F32x16 low = StoreSumsOfCodes(out.low + column, low_sums);
  for (int i = 0; i < 16; ++i) sums[i] = 256 * sums[i] + low_sums[i];
  return Fma(high, Set1(256.0f), low);
}

// Quantises 16 blocks at once, so that each fold over lanes and each division serves 16 blocks. Returns false if a value is not finite;
// the output is then unspecified.
template <bool kFine, bool kLow>
bool QuantizeBlocks(const float* x, int64_t block, const QuantizedRows& out) {
  constexpr int kParts = kFine ? 2 : 1;          // 16 scales each
  constexpr int kColumns = kBlockSize / kParts;  // columns that share a scale
  x += block * kBlockSize;
  F32x16 scales[kParts];
  float inverses[16 * kParts];
  for (int part = 0; part < kParts; ++part) {
    F32x16 magnitudes[16];
    for (int i = 0; i < 16; ++i) {
      const float* values = x + (16 * part + i) * kColumns;
      magnitudes[i] = Abs(Load(values));
      if constexpr (!kFine) magnitudes[i] = MaxBits(magnitudes[i], Abs(Load(values + 16)));
    }
    const F32x16 maximum = FoldMaxBits(magnitudes);
    if (LessMask(maximum, Set1(__builtin_inff())) != 0xFFFF) return false;
    scales[part] = Div(maximum, Set1(127.0f));
    if constexpr (kLow) scales[part] = Mul(scales[part], Set1(kLowStep));
    Store(out.scales + kParts * block + 16 * part, scales[part]);
    Store(inverses + 16 * part, SelectLess(Set1(0x1p-100f), maximum, Div(Set1(127.0f), maximum), Zero()));
  }
  const int64_t column = block * kBlockSize;
  for (int i = 0; i < 32; ++i) {
    const F32x16 y = Mul(Load(x + 16 * i), Set1(inverses[kFine ? i : i / 2]));
    StoreInt8(out.codes + column + 16 * i, y);
    if constexpr (kLow) StoreInt8(out.low + column + 16 * i, LowBytes(y));
  }
  const F32x16 first = StoreHalfSums<kLow>(column, out);
  const F32x16 second = StoreHalfSums<kLow>(column + 256, out);
  if constexpr (kFine) {
    Store(out.sums + block, AddPairs(Mul(scales[0], first), Mul(scales[1], second)));
  } else {
    Store(out.sums + block, Mul(scales[0], AddPairs(first, second)));
  }
  return true;
}

}  // namespace

void quantize_rows(const float* x, int64_t row_begin, int64_t row_end, const QuantizedRows& out) {
  const int64_t num_blocks = out.num_cols / kBlockSize;
  const int64_t end = row_end * num_blocks;
  int64_t block = row_begin * num_blocks;
  const auto quantize_blocks = out.low != nullptr ? QuantizeBlocks<false, true>
                               : out.fine         ? QuantizeBlocks<true, false>
                                                  : QuantizeBlocks<false, false>;
  for (; block + 16 <= end; block += 16) {
    if (quantize_blocks(x, block, out)) continue;
    for (int64_t i = 0; i < 16; ++i) QuantizeBlock(x, block + i, out);
  }
  for (; block < end; ++block) QuantizeBlock(x, block, out);
}

}  // namespace llmi::LLMI_ISA_NAMESPACE

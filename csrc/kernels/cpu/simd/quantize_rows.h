// quantize_rows over 16 lanes. Contract: kernels/quantize_rows.h; definition: kernels/cpu/reference/quantize_block.h.
#pragma once

#include "kernels/quantize_rows.h"

namespace llmi::LLMI_ISA_NAMESPACE {
namespace {

void QuantizeBlock(const float* x, int64_t block, const QuantizedRows& out) {
  const F32x16 a = Load(x + block * kBlockSize);
  const F32x16 b = Load(x + block * kBlockSize + 16);
  const AbsMax first =
      out.fine ? FoldAbsMax(Abs(a), Fma(a, Zero(), Zero())) : FoldAbsMax(Max(Abs(a), Abs(b)), Fma(b, Zero(), Fma(a, Zero(), Zero())));
  const AbsMax second = out.fine ? FoldAbsMax(Abs(b), Fma(b, Zero(), Zero())) : first;
  int8_t* codes = out.codes + block * kBlockSize;
  const int32_t sum0 = StoreInt8(codes, first.finite ? Mul(a, first.inverse) : Zero());
  const int32_t sum1 = StoreInt8(codes + 16, second.finite ? Mul(b, second.inverse) : Zero());
  if (out.fine) {
    out.scales[2 * block] = first.scale;
    out.scales[2 * block + 1] = second.scale;
    out.sums[block] = first.scale * static_cast<float>(sum0) + second.scale * static_cast<float>(sum1);
  } else {
    out.scales[block] = first.scale;
    out.sums[block] = first.scale * static_cast<float>(sum0 + sum1);
  }
  out.half_sums[2 * block] = sum0;
  out.half_sums[2 * block + 1] = sum1;
}

// 16 blocks at once, so that what folds lanes of one block, and its divisions, serve 16. False, and nothing of worth written, if a
// value is not finite.
template <bool kFine>
bool QuantizeBlocks(const float* x, int64_t block, const QuantizedRows& out) {
  constexpr int kParts = kFine ? 2 : 1;          // 16 scales each
  constexpr int kColumns = kBlockSize / kParts;  // that share a scale
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
    Store(out.scales + kParts * block + 16 * part, scales[part]);
    Store(inverses + 16 * part, SelectLess(Set1(0x1p-100f), maximum, Div(Set1(127.0f), maximum), Zero()));
  }
  int8_t* codes = out.codes + block * kBlockSize;
  for (int i = 0; i < 32; ++i) StoreInt8(codes + 16 * i, Mul(Load(x + 16 * i), Set1(inverses[kFine ? i : i / 2])));
  const F32x16 first = StoreSumsOfCodes(codes, out.half_sums + 2 * block);
  const F32x16 second = StoreSumsOfCodes(codes + 256, out.half_sums + 2 * block + 16);
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
  for (; block + 16 <= end; block += 16) {
    if (out.fine ? QuantizeBlocks<true>(x, block, out) : QuantizeBlocks<false>(x, block, out)) continue;
    for (int64_t i = 0; i < 16; ++i) QuantizeBlock(x, block + i, out);
  }
  for (; block < end; ++block) QuantizeBlock(x, block, out);
}

}  // namespace llmi::LLMI_ISA_NAMESPACE

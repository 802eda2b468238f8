// probe_fma and probe_dots over 16 lanes. Contract: kernels/ops/probe.h; definitions: kernels/cpu/reference/probe.cc.
#pragma once

#include "kernels/cpu/simd/probe_chains-inl.h"

namespace llmi::LLMI_ISA_NAMESPACE {

void probe_fma(int64_t iterations, float* out) {
  RunProbeChains(iterations, [](F32x16 v) { return Fma(v, Set1(0.5f), Set1(1.0f)); }, out);
}

void probe_dots(int64_t iterations, const uint8_t* block, const QuantizedRows& x, float* out) {
  F32x16 sums[kProbeDotRows];
  for (F32x16& sum : sums) sum = Zero();
  const auto add = [&]<int MR>(int64_t first, int64_t row) {
    F32x16 dots[MR];
    BlockDots<PackedType::kQ4, MR, 1, false>(block, CodeLookup<PackedType::kQ4>({}), ActivationBlock<MR>(x, first + row), dots);
    for (int m = 0; m < MR; ++m) sums[row + m] = Add(sums[row + m], dots[m]);
  };
  constexpr int kPass = kLinearRows < kProbeDotRows ? kProbeDotRows / 2 : kProbeDotRows;
  for (int64_t i = 0; i < iterations; ++i) {
    for (int64_t row = 0; row < kProbeDotRows; row += kPass) add.template operator()<kPass>(i * kProbeDotRows % kProbeRows, row);
  }
  for (int64_t m = 0; m < kProbeDotRows; ++m) Store(out + 16 * m, sums[m]);
}

}  // namespace llmi::LLMI_ISA_NAMESPACE

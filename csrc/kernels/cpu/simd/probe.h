// probe_fma and probe_dots over 16 lanes. Contract: kernels/probe.h; definitions: kernels/cpu/reference/probe.cc.
#pragma once

namespace llmi::LLMI_ISA_NAMESPACE {

void probe_fma(int64_t iterations, float* out) {
  // Chains by turns in groups that stay in registers on either instruction set.
  constexpr int kGroup = 6;
  F32x16 total = Zero();
  for (int64_t first = 0; first < kProbeChains; first += kGroup) {
    F32x16 chains[kGroup];
    for (int c = 0; c < kGroup; ++c) chains[c] = Set1(static_cast<float>(first + c));
    for (int64_t i = 0; i < iterations; ++i) {
      for (int c = 0; c < kGroup; ++c) chains[c] = Fma(chains[c], Set1(0.5f), Set1(1.0f));
    }
    for (int c = 0; c < kGroup; ++c) total = Add(total, chains[c]);
  }
  Store(out, total);
}

void probe_dots(int64_t iterations, const uint8_t* block, const QuantizedRows& x, float* out) {
  F32x16 sums[kProbeDotRows];
  for (F32x16& sum : sums) sum = Zero();
  const auto add = [&]<int MR>(int64_t first, int64_t row) {
    F32x16 dots[MR];
    BlockDots<PackedType::kQ4, MR, 1>(block, BlockOfRows<MR>(x, first + row), dots);
    for (int m = 0; m < MR; ++m) sums[row + m] = Add(sums[row + m], dots[m]);
  };
  constexpr int kPass = kLinearRows < kProbeDotRows ? kProbeDotRows / 2 : kProbeDotRows;
  for (int64_t i = 0; i < iterations; ++i) {
    for (int64_t row = 0; row < kProbeDotRows; row += kPass) add.template operator()<kPass>(i * kProbeDotRows % kProbeRows, row);
  }
  for (int64_t m = 0; m < kProbeDotRows; ++m) Store(out + 16 * m, sums[m]);
}

}  // namespace llmi::LLMI_ISA_NAMESPACE

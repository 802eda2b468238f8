// The common part of probe_fma and probe_bf16: kProbeChains independent chains (kernels/ops/probe.h).
#pragma once

namespace llmi::LLMI_ISA_NAMESPACE {
namespace {

// out[16] = the sum of the chains in order; step maps a chain's value to its next. Always inlined: values stay in registers.
template <typename Step>
[[gnu::always_inline]] inline void RunProbeChains(int64_t iterations, const Step& step, float* out) {
  // Chains are interleaved in groups that fit in the registers of either instruction set.
  constexpr int kGroup = 6;
  alignas(64) float lanes[16];
  for (int lane = 0; lane < 16; ++lane) lanes[lane] = static_cast<float>(lane);
  F32x16 total = Zero();
  for (int64_t first = 0; first < kProbeChains; first += kGroup) {
    F32x16 chains[kGroup];
    for (int c = 0; c < kGroup; ++c) chains[c] = Add(Set1(static_cast<float>(16 * (first + c))), Load(lanes));
    for (int64_t i = 0; i < iterations; ++i) {
      for (int c = 0; c < kGroup; ++c) chains[c] = step(chains[c]);
    }
    for (int c = 0; c < kGroup; ++c) total = Add(total, chains[c]);
  }
  Store(out, total);
}

}  // namespace
}  // namespace llmi::LLMI_ISA_NAMESPACE

// probe_bf16 over 16 lanes. Contract: kernels/probe.h.
#pragma once

#include "kernels/cpu/simd/bf16_dots.h"

namespace llmi::LLMI_ISA_NAMESPACE {

void probe_bf16(int64_t iterations, float* out) {
  constexpr int kGroup = 6;  // chains that stay in registers on either instruction set
  const F32x16 pair = Set1Pair(kProbePair);
  F32x16 total = Zero();
  for (int64_t first = 0; first < kProbeChains; first += kGroup) {
    F32x16 chains[kGroup];
    for (int c = 0; c < kGroup; ++c) chains[c] = Set1(static_cast<float>(first + c));
    for (int64_t i = 0; i < iterations; ++i) {
      for (int c = 0; c < kGroup; ++c) chains[c] = DotPairs(pair, pair, chains[c]);
    }
    for (int c = 0; c < kGroup; ++c) total = Add(total, chains[c]);
  }
  Store(out, total);
}

}  // namespace llmi::LLMI_ISA_NAMESPACE

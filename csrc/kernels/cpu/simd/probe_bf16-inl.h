// probe_bf16 over 16 lanes. Contract: kernels/ops/probe.h.
#pragma once

#include "kernels/cpu/simd/bf16_dots-inl.h"
#include "kernels/cpu/simd/probe_chains-inl.h"

namespace llmi::LLMI_ISA_NAMESPACE {

void probe_bf16(int64_t iterations, float* out) {
  const F32x16 pair = Set1Pair(kProbePair);
  RunProbeChains(iterations, [&](F32x16 v) { return DotPairs(pair, pair, v); }, out);
}

}  // namespace llmi::LLMI_ISA_NAMESPACE

// embedding: out[i] = scale * W[ids[i]]; W is dequantised exactly by the formulas of packed_weights.h (those with a minimum by one fma).
// ids  [num_rows] int32 in [0, weights.num_rows), the host's; with a device also ids below zero, which name tokens that it drew
// (StepInputs) out  [num_rows, weights.num_cols] fp32
#pragma once

#include <stdint.h>

#include "kernels/layout/packed_weights.h"
#include "kernels/ops/context.h"

namespace llmi {

// Throws Error(kInvalidArgument) for ids out of range.
void CheckIds(const KernelContext& context, const PackedView& weights, const int32_t* ids, int64_t num_rows);
void Embedding(const KernelContext& context, const PackedView& weights, const int32_t* ids, int64_t num_rows, float scale, float* out);

}  // namespace llmi

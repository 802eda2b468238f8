// norm: RMS norm and layer norm, over groups of `size` values.
//   kRms    out = ((x * 1/sqrt(mean(x^2) + eps)) * weight) + bias
//   kLayer  c = x - mean(x); out = ((c * 1/sqrt(mean(c^2) + eps)) * weight) + bias
// Each operation is rounded; without weight or bias there is no product or sum.
//
// x, out  num_rows rows, each of num_groups groups, group_stride apart in both (one group: a whole row; several: one per attention head);
//         rows x_stride and out_stride apart; out may be x. Values between groups do not change.
// weight  [size] fp32, or [num_groups, size] with own_weights; null: none. bias likewise
// accumulate: out = out + result (the residual sum of sandwich norms); then out may not be x
// Sums: 16 lanes (column of the group modulo 16), each in order, folded by the fixed tree 8, 4, 2, 1; any size. kLayer: the mean first,
// then the squares of c. input: other forms of out to make (kernels/ops/linear_input.h); then the groups of all rows must stand one after
// the other.
// Sources: Zhang and Sennrich, Root Mean Square Layer Normalization, 2019; Ba et al., Layer Normalization, 2016.
#pragma once

#include <stdint.h>

#include "core/host_device.h"
#include "kernels/ops/context.h"
#include "kernels/ops/linear_input.h"

namespace llmi {

enum class NormKind : uint8_t { kRms, kLayer };

struct NormArgs {
  NormKind kind = NormKind::kRms;
  const float* x;
  int64_t x_stride;
  float* out;
  int64_t out_stride;
  int64_t num_rows;
  int64_t num_groups = 1;
  int64_t group_stride = 0;  // 0: size
  int64_t size;
  const float* weight = nullptr;
  const float* bias = nullptr;
  bool own_weights = false;
  float eps;
  bool accumulate = false;
};

LLMI_HD static inline int64_t NormGroupStride(const NormArgs& args) { return args.group_stride != 0 ? args.group_stride : args.size; }

void Norm(const KernelContext& context, const NormArgs& args, const LinearInput& input = {});

}  // namespace llmi

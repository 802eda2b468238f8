// rope: applies the rotary position embedding in place, in the halves convention: for i < rotary_dim / 2,
//   x1 = x[i], x2 = x[i + rotary_dim / 2]
//   x[i]                  = fma(x1, cos, -(x2 sin))
//   x[i + rotary_dim / 2] = fma(x2, cos, x1 sin)
//
// x     num_rows rows, x_stride apart, each of num_heads heads of head_dim fp32, head_stride apart
// cosine, sine  [num_rows, rotary_dim / 2] fp32 (RopeTable); any even rotary_dim up to head_dim
// Source: Su et al., RoFormer, 2021.
#pragma once

#include <stdint.h>

#include "core/host_device.h"
#include "kernels/ops/context.h"

namespace llmi {

struct RopeArgs {
  float* x;
  int64_t x_stride;
  int64_t num_rows;
  int64_t num_heads;
  int64_t head_dim;
  int64_t head_stride = 0;  // 0: head_dim
  int64_t rotary_dim;
  const float* cosine;
  const float* sine;
};

LLMI_HD static inline int64_t RopeHeadStride(const RopeArgs& args) { return args.head_stride != 0 ? args.head_stride : args.head_dim; }

void Rope(const KernelContext& context, const RopeArgs& args);

}  // namespace llmi

// rms_norm: out = (x * 1/sqrt(mean(x^2) + eps)) * weight, over groups of `size` values.
//
// x, out  num_rows rows, each of num_groups groups of `size` values side by side (one group: a whole row;
//         several: one per attention head); rows x_stride and out_stride apart; out may be x
// weight  [size] fp32
// accumulate: out = out + result (the residual sum of sandwich norms); then out may not be x
// Sum of squares: 16 lanes (column modulo 16), folded by the fixed tree 8, 4, 2, 1. size: a multiple of 16.
// input: other forms of out to make (kernels/ops/linear_input.h); then out_stride must be the length of a row
// Source: Zhang and Sennrich, Root Mean Square Layer Normalization, 2019.
#pragma once

#include <stdint.h>

#include "kernels/ops/context.h"
#include "kernels/ops/linear_input.h"

namespace llmi {

struct RmsNormArgs {
  const float* x;
  int64_t x_stride;
  float* out;
  int64_t out_stride;
  int64_t num_rows;
  int64_t num_groups = 1;
  int64_t size;
  const float* weight;
  float eps;
  bool accumulate = false;
};

void RmsNorm(const KernelContext& context, const RmsNormArgs& args, const LinearInput& input = {});

}  // namespace llmi

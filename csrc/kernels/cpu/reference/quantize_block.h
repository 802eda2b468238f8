// quantize_rows for one block of 32 values.
#pragma once

#include "kernels/cpu/reference/int8_codes.h"
#include "kernels/packed_weights.h"
#include "kernels/quantize_rows.h"

namespace llmi::reference {
namespace {

LLMI_HD inline void QuantizeBlock(const float* x, int64_t block, const QuantizedRows& out) {
  const float* values = x + block * kBlockSize;
  const int parts = out.fine ? 2 : 1;
  const AbsMax absmax[2] = {FindAbsMax(values, kBlockSize / parts), FindAbsMax(values + kBlockSize / 2, kBlockSize / 2)};
  int32_t half_sums[2] = {0, 0};
  for (int i = 0; i < kBlockSize; ++i) {
    const int32_t code = Int8Code(absmax[i * parts / kBlockSize], values[i]);
    out.codes[block * kBlockSize + i] = static_cast<int8_t>(code);
    half_sums[i / 16] += code;
  }
  float* scales = out.scales + block * parts;
  for (int part = 0; part < parts; ++part) scales[part] = Int8Scale(absmax[part]);
  out.sums[block] = out.fine ? scales[0] * static_cast<float>(half_sums[0]) + scales[1] * static_cast<float>(half_sums[1])
                             : scales[0] * static_cast<float>(half_sums[0] + half_sums[1]);
  out.half_sums[2 * block] = half_sums[0];
  out.half_sums[2 * block + 1] = half_sums[1];
}

}  // namespace
}  // namespace llmi::reference

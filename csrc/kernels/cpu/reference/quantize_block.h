// quantize_rows for one block of 32 values.
#pragma once

#include "kernels/cpu/reference/int8_codes.h"
#include "kernels/layout/packed_weights.h"
#include "kernels/ops/quantize_rows.h"

namespace llmi::reference {
namespace {

LLMI_HD inline void QuantizeBlock(const float* x, int64_t block, const QuantizedRows& out) {
  const float* values = x + block * kBlockSize;
  const AbsMax first = FindAbsMax(values, out.fine ? kBlockSize / 2 : kBlockSize);
  const AbsMax second = out.fine ? FindAbsMax(values + kBlockSize / 2, kBlockSize / 2) : first;
  int32_t half_sums[2] = {0, 0};
  LLMI_UNROLL
  for (int half = 0; half < 2; ++half) {
    const AbsMax& absmax = half == 0 ? first : second;
    for (int i = half * 16; i < half * 16 + 16; ++i) {
      const int32_t high = Int8Code(absmax, values[i]);
      int32_t code = high;
      if (out.low != nullptr) {
        const int32_t low = absmax.poison == 0.0f ? LowCode(values[i] * absmax.inverse, high) : 0;
        out.low[block * kBlockSize + i] = static_cast<int8_t>(low);
        code = 256 * high + low;
      }
      out.codes[block * kBlockSize + i] = static_cast<int8_t>(high);
      half_sums[half] += code;
    }
  }
  const float scale = out.low != nullptr ? Int8Scale(first) * kLowStep : Int8Scale(first);
  if (out.fine) {
    const float second_scale = Int8Scale(second);
    out.scales[2 * block] = scale;
    out.scales[2 * block + 1] = second_scale;
    out.sums[block] = scale * static_cast<float>(half_sums[0]) + second_scale * static_cast<float>(half_sums[1]);
  } else {
    out.scales[block] = scale;
    out.sums[block] = scale * static_cast<float>(half_sums[0] + half_sums[1]);
  }
  out.half_sums[2 * block] = half_sums[0];
  out.half_sums[2 * block + 1] = half_sums[1];
}

}  // namespace
}  // namespace llmi::reference

// Absmax quantisation of a block of fp32 values to int8: the definition in kernels/ops/quantize_rows.h.
#pragma once

#include <stdint.h>

#include "core/scalar_math.h"

namespace llmi::reference {
namespace {

struct AbsMax {
  float maximum;
  float inverse;  // codes are the values times this, rounded
  float poison;   // NaN if any value is not finite, else 0
};

LLMI_HD inline AbsMax FindAbsMax(const float* values, int64_t size) {
  AbsMax result = {0.0f, 0.0f, 0.0f};
  for (int64_t i = 0; i < size; ++i) {
    const float magnitude = __builtin_fabsf(values[i]);
    result.maximum = magnitude > result.maximum ? magnitude : result.maximum;
    result.poison = Fma(values[i], 0.0f, result.poison);
  }
  if (result.maximum > 0x1p-100f) result.inverse = 127.0f / result.maximum;
  return result;
}

// Rounds to nearest even for |x| < 2^22 by the fp32 adder.
LLMI_HD inline int32_t RoundToInt(float x) {
  const float shifted = x + 12582912.0f;
  return static_cast<int32_t>(__builtin_bit_cast(uint32_t, shifted) - 0x4B400000u);
}

// The low byte of a code whose high byte is round(y).
LLMI_HD inline int32_t LowCode(float y, int32_t high) {
  const int32_t low = RoundToInt((y - static_cast<float>(high)) * 256.0f);
  return low > 127 ? 127 : low < -127 ? -127 : low;
}

LLMI_HD inline int32_t Int8Code(const AbsMax& absmax, float value) {
  return absmax.poison == 0.0f ? RoundToInt(value * absmax.inverse) : 0;
}

LLMI_HD inline float Int8Scale(const AbsMax& absmax) { return absmax.maximum / 127.0f + absmax.poison; }

}  // namespace
}  // namespace llmi::reference

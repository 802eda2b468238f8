// Static inline and builtins only, as in half.h.
//
// Scalar conversions of fp8 e4m3 (OCP 8-bit floating point specification, 2023): four bits of exponent, three of mantissa, no infinity;
// code 0x7F is NaN. Rounds to nearest even; finite values above 448 become 448; infinities and NaN become NaN.
#pragma once

#include <cstdint>

#include "core/host_device.h"

namespace llmi {

LLMI_HD static inline float Float8ToFloat(uint8_t code) {
  const uint32_t sign = static_cast<uint32_t>(code & 0x80u) << 24;
  const uint32_t magnitude = code & 0x7Fu;
  if (magnitude == 0x7F) return __builtin_bit_cast(float, sign | 0x7FC00000u);
  if (magnitude >= 8) return __builtin_bit_cast(float, sign | ((magnitude << 20) + (120u << 23)));
  const float subnormal = static_cast<float>(magnitude) * 0x1p-9f;
  return __builtin_bit_cast(float, __builtin_bit_cast(uint32_t, subnormal) | sign);
}

LLMI_HD static inline uint8_t FloatToFloat8(float value) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, value);
  const uint32_t sign = (bits >> 24) & 0x80u;
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude >= 0x7F800000u) return static_cast<uint8_t>(sign | 0x7Fu);
  if (magnitude >= 0x43E00000u) return static_cast<uint8_t>(sign | 0x7Eu);  // 448
  if (magnitude < 0x3C800000u) {                                            // below 2^-6: in steps of 2^-9, rounded by the fp32 adder
    const float shifted = __builtin_bit_cast(float, magnitude) + 0x1p14f;
    return static_cast<uint8_t>(sign | (__builtin_bit_cast(uint32_t, shifted) - 0x46800000u));
  }
  const uint32_t rounded = magnitude + 0x7FFFFu + ((magnitude >> 20) & 1u);
  return static_cast<uint8_t>(sign | ((rounded - (120u << 23)) >> 20));
}

// 2^(exponent - 128), half of what e8m0 (OCP microscaling formats, 2023) gives a byte: the scale of doubled e2m1 values. 255 is no NaN here
// but 2^127, as in ggml.
LLMI_HD static inline float PowerOfTwoScale(uint8_t exponent) {
  const uint32_t bits = exponent < 2 ? 0x00200000u << exponent : (exponent - 1u) << 23;
  return __builtin_bit_cast(float, bits);
}

}  // namespace llmi

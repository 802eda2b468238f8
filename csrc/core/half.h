// Static inline and builtins only: this header is compiled with the flags of each instruction set, and the
// linker must never keep one copy for all.
//
// Scalar conversions of fp16 and bf16: round to nearest even; a NaN stays a NaN. The bits equal those of F16C and AVX-512.
#pragma once

#include <cstdint>

#include "core/host_device.h"

namespace llmi {

LLMI_HD static inline float HalfToFloat(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  const uint32_t exponent = (half >> 10) & 0x1Fu;
  const uint32_t mantissa = half & 0x3FFu;
  if (exponent == 0x1F) {  // infinity or NaN; hardware sets the quiet bit
    return __builtin_bit_cast(float, sign | 0x7F800000u | (mantissa << 13) | (mantissa != 0 ? 0x400000u : 0u));
  }
  if (exponent != 0) return __builtin_bit_cast(float, sign | ((exponent + 112) << 23) | (mantissa << 13));
  // Subnormal: mantissa x 2^-24 is exact in fp32.
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
  return __builtin_bit_cast(float, __builtin_bit_cast(uint32_t, magnitude) | sign);
}

LLMI_HD static inline uint16_t FloatToHalf(float value) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return static_cast<uint16_t>(sign | 0x7E00u | ((magnitude >> 13) & 0x1FFu));
  if (magnitude >= 0x477FF000u) return static_cast<uint16_t>(sign | 0x7C00u);  // 65520 and more round to infinity
  if (magnitude < 0x38800000u) {                                               // below 2^-14: subnormal half, rounded by the fp32 adder
    const float shifted = __builtin_bit_cast(float, magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (__builtin_bit_cast(uint32_t, shifted) - 0x3F000000u));
  }
  const uint32_t rounded = magnitude + 0xFFFu + ((magnitude >> 13) & 1u);
  return static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}

LLMI_HD static inline float Bfloat16ToFloat(uint16_t value) { return __builtin_bit_cast(float, static_cast<uint32_t>(value) << 16); }

}  // namespace llmi

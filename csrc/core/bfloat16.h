// bfloat16 in scalar code: rounding, and the dot of pairs for which processors have an instruction (Intel's manual, VDPBF16PS). These
// functions define the same result: two fused multiply-adds, the odd elements first, each rounded to nearest even, with subnormal inputs
// and outputs replaced by zero, whatever the floating-point environment is.
#pragma once

#include <stdint.h>

#include "core/half.h"
#include "core/scalar_math.h"

namespace llmi {

// Rounds to nearest even; a NaN stays a NaN.
LLMI_HD static inline uint16_t FloatToBfloat16(float value) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}
LLMI_HD static inline float RoundToBfloat16(float value) { return Bfloat16ToFloat(FloatToBfloat16(value)); }

LLMI_HD static inline float FlushSubnormal(float x) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, x);
  return (bits & 0x7F800000u) == 0 ? __builtin_bit_cast(float, bits & 0x80000000u) : x;
}

// fma(a, b, c) of bfloat16 a and b, with subnormals flushed.
LLMI_HD static inline float FlushingFma(float a, float b, float c) {
  a = FlushSubnormal(a);
  b = FlushSubnormal(b);
  c = FlushSubnormal(c);
  const float sum = Fma(a, b, c);
  if (sum != 0x1p-126f && sum != -0x1p-126f) return FlushSubnormal(sum);
  // The instruction flushes a sum that is below 2^-126 after rounding to 24 bits with an unbounded exponent. This holds for some of the
  // sums that round to 2^-126 here.
  const double product = static_cast<double>(a) * static_cast<double>(b);
  const double addend = static_cast<double>(c);
  const double total = product + addend;
  const double part = total - product;
  const double error = (product - (total - part)) + (addend - part);
  const double sign = total < 0 ? -1.0 : 1.0;
  const double excess = total * sign - (0x1p-126 - 0x1p-151);
  const bool tiny = excess < 0 || (excess == 0 && error * sign < 0);
  return tiny ? static_cast<float>(sign) * 0.0f : sum;
}

// sum + a0 b0 + a1 b1.
LLMI_HD static inline float DotPair(float sum, float a0, float b0, float a1, float b1) {
  return FlushingFma(a0, b0, FlushingFma(a1, b1, sum));
}

}  // namespace llmi

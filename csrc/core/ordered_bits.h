// Floats as integers that ascend with them.
#pragma once

#include <stdint.h>

#include "core/host_device.h"

namespace llmi {

// x < y if and only if OrderedBits(x) < OrderedBits(y); zeros of either sign are equal. NaN has no place.
LLMI_HD static inline uint32_t OrderedBits(float x) {
  const auto bits = __builtin_bit_cast(uint32_t, x + 0.0f);
  return bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
}
// The float with these bits; a zero is +0.
LLMI_HD static inline float FromOrderedBits(uint32_t ordered) {
  return __builtin_bit_cast(float, ordered >> 31 != 0 ? ordered & 0x7FFFFFFFu : ~ordered);
}

}  // namespace llmi

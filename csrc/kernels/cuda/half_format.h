// Numbers of 16 bits that tensor cores multiply.
#pragma once

#include <stdint.h>

#include "core/bfloat16.h"
#include "core/half.h"
#include "core/host_device.h"

namespace llmi::cuda {

enum class HalfFormat : uint8_t { kBF16, kF16 };

// To nearest even; beyond fp16's range infinite.
template <HalfFormat F>
LLMI_HD inline uint16_t RoundedTo(float value) {
  if constexpr (F == HalfFormat::kBF16) return FloatToBfloat16(value);
#ifdef __CUDA_ARCH__
  uint16_t bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
#else
  return FloatToHalf(value);
#endif
}

// fp16's bits as a float; exact.
LLMI_HD inline float HalfBitsToFloat(uint16_t bits) {
#ifdef __CUDA_ARCH__
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
#else
  return HalfToFloat(bits);
#endif
}

}  // namespace llmi::cuda

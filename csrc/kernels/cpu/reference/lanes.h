// The canonical 16 lanes as plain arrays.
#pragma once

#include "core/host_device.h"

namespace llmi::reference {

// Folds 16 lanes by the fixed tree 8, 4, 2, 1.
LLMI_HD inline float FoldSum(const float* lanes) {
  float work[16];
  for (int i = 0; i < 16; ++i) work[i] = lanes[i];
  for (int width = 8; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) work[i] = work[i] + work[i + width];
  }
  return work[0];
}

// The larger; b if either is NaN (as x86 max does).
LLMI_HD inline float Max(float a, float b) { return a > b ? a : b; }

}  // namespace llmi::reference

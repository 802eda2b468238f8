// A causal convolution of each channel over the last `length` rows of a sequence, itself included.
#pragma once

#include <stdint.h>

#include "kernels/ops/conv_step.h"
#include "kernels/ops/state.h"

namespace llmi {

// The state of a channel: its last length - 1 inputs.
struct ConvArgs {
  int64_t channels;     // a multiple of 16
  int64_t length;       // 2 or more
  const float* weight;  // [length, channels], the oldest row first
  const float* bias;    // [channels] or null
  ConvActivation activation = ConvActivation::kNone;
};

inline int64_t ConvStateFloats(int64_t channels, int64_t length) { return (length - 1) * channels; }

void Conv(const KernelContext& context, const ConvArgs& conv, const StateRows& rows);

}  // namespace llmi

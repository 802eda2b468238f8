// What one row does to some channels of a causal convolution: conv.h.
#pragma once

#include <stdint.h>

namespace llmi {

enum class ConvActivation : uint8_t { kNone, kSilu };

// out = activation(bias + sum of weight * input by fma, the oldest row first) of `channels` channels of one row; the state [length - 1,
// channels] then holds this row's inputs, too.
struct ConvStep {
  int64_t channels;
  int64_t length;
  const float* weight;
  int64_t weight_stride;
  const float* bias;
  ConvActivation activation;
  float* state;
  const float* input;
  float* out;  // null: not wanted
};

}  // namespace llmi

#include "kernels/ops/conv.h"

#include "core/errors.h"
#include "kernels/dispatch/device.h"
#include "kernels/dispatch/kernel_table.h"

namespace llmi {
namespace {

// The channels of a part: all inputs of a part are in the L1 cache, and wide layers have several parts.
int64_t PartChannels(int64_t channels) {
  int64_t part = 16;
  while (part < 512 && channels % (2 * part) == 0) part *= 2;
  return part;
}

}  // namespace

void Conv(const KernelContext& context, const ConvArgs& conv, const StateRows& rows) {
  CheckArgument(conv.channels > 0 && conv.channels % 16 == 0, "conv: channels must be a positive multiple of 16");
  CheckArgument(conv.length > 1, "conv: the length must be 2 or more");
  CheckArgument(rows.input_floats == conv.channels, "conv: an input has a value for each channel");
  if (context.device != nullptr) return context.device->Conv(conv, rows);
  const int64_t part_channels = PartChannels(conv.channels);
  const auto step = [&](int64_t part, float* state, const float* input, float* out) {
    const int64_t first = part * part_channels;
    context.table->conv_step({.channels = part_channels,
                              .length = conv.length,
                              .weight = conv.weight + first,
                              .weight_stride = conv.channels,
                              .bias = conv.bias == nullptr ? nullptr : conv.bias + first,
                              .activation = conv.activation,
                              .state = state,
                              .input = input + first,
                              .out = out == nullptr ? nullptr : out + first});
  };
  AdvanceStates(context, rows, {conv.channels / part_channels, ConvStateFloats(part_channels, conv.length), step});
}

}  // namespace llmi

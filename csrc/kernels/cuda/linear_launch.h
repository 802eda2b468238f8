// Launches of linear layers, and of the norm and the activation around them: which kernel serves the parts of one type.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/linear_kernels.h"
#include "kernels/cuda/matrix_linear_kernel.h"
#include "kernels/cuda/row_launch.h"
#include "kernels/cuda/stream_float_launch.h"
#include "kernels/cuda/stream_launch.h"
#include "kernels/dispatch/device.h"

namespace llmi::cuda {

template <typename Launcher>
void LaunchParts(Launcher& launcher, const LinearArgs& args, const StreamInput& input, const FloatInput& floats,
                 const LinearOutput& output) {
  const PackedView& weights = output.weights;
  const Int8Rows codes = {args.quantized};
  if (HasFloatPieces(weights.type)) return LaunchFloats(launcher, output, floats);
  if (weights.in_chunks) return LaunchStreamOutput(launcher, output, input);
  const int64_t num_tiles = output.num_tiles;
  const int64_t num_groups = (args.num_rows + kLinearRows - 1) / kLinearRows;
  const auto launch = [&](const auto& kernel) { launcher.Launch(num_groups, num_tiles, kLinearThreads, kernel.kSharedBytes, kernel); };
  if (args.num_rows > kLinearRows) {
    launcher.Launch((args.num_rows + kMatrixRows - 1) / kMatrixRows, (num_tiles + kMatrixWarps - 1) / kMatrixWarps,
                    kMatrixWarps * kWarpLanes, 0, MatrixLinearKernel{output, codes});
  } else {
    launch(LinearKernel<Int8Rows>{output, codes});
  }
}

// Calls launch(output) for all parts that are not cuBLASLt's; parts of one type are one output.
template <typename Launch>
void ForEachOutput(const LinearArgs& args, const Launch& launch) {
  uint64_t done = 0;  // a bit for each part
  for (int64_t first = 0; first < args.num_parts; ++first) {
    const PackedView& weights = args.parts[first].weights;
    if ((done >> first & 1) != 0 || IsRowsPacked(weights.type)) continue;
    LinearOutput output(weights, args.num_rows, args.out_stride, args.accumulate);
    for (int64_t p = first; p < args.num_parts && !output.IsFull(); ++p) {
      const LinearPart& part = args.parts[p];
      if ((done >> p & 1) != 0 || !GoTogether(part.weights, weights)) continue;
      done |= uint64_t{1} << p;
      output.Add(part.weights, part.bias, args.out + part.out_column);
    }
    launch(output);
  }
}

// Norm and activation are parts of the launches where these take them. `room` may hold x, and holds what the activation makes.
template <typename Launcher>
void LaunchLinear(Launcher& launcher, const StreamChoices& choices, int num_multiprocessors, FragmentRoom& room, const LinearStep& step) {
  const LinearArgs& layers = step.layers;
  StreamInput input = {.rows = layers.quantized, .choices = choices, .num_multiprocessors = num_multiprocessors};
  FloatInput floats = {{layers.x, layers.x_stride}, room, num_multiprocessors};
  if (step.norm != nullptr) {
    const bool take_codes = std::all_of(layers.parts, layers.parts + layers.num_parts, [](const LinearPart& part) {
      return part.weights.in_chunks && IsQuantizedPacked(part.weights.type);
    });
    if (take_codes && TakesNorm(*step.norm, input.rows)) {
      input.norm = *step.norm;
    } else if (!take_codes && TakesFloatNorm(layers, *step.norm, room)) {
      floats.norm = *step.norm;
    } else {
      LaunchNorm(launcher, *step.norm, step.input.quantized, room);
    }
  }
  const bool gated = step.activation != nullptr && TakesActivation(step);
  ForEachOutput(layers, [&](const LinearOutput& output) {
    if (gated) return LaunchStreamOutput(launcher, GatedOutput{output, *step.activation, step.forms.quantized}, input);
    LaunchParts(launcher, layers, input, floats, output);
  });
  room.Forget();  // the layers may have written over what it holds
  if (step.activation != nullptr && !gated) LaunchActivation(launcher, *step.activation, step.forms.quantized, room);
}

}  // namespace llmi::cuda

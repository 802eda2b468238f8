// Launches of linear layers, and of the norm and the activation around them: which kernel serves the parts of one type.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/half_linear_kernels.h"
#include "kernels/cuda/linear_kernels.h"
#include "kernels/cuda/matrix_linear_kernel.h"
#include "kernels/cuda/row_launch.h"
#include "kernels/cuda/stream_launch.h"
#include "kernels/dispatch/device.h"

namespace llmi::cuda {

// Few rows: the warps of a block share the columns of a tile; many rows: each warp has a tile. The sums are the same.
template <HalfFormat F, typename Launcher>
void LaunchHalfLinear(Launcher& launcher, const HalfLinear<F>& linear) {
  constexpr int kThreads = kHalfWarps * kWarpLanes;
  const int64_t num_tiles = linear.output.num_tiles;
  const int64_t num_rows = linear.output.num_rows;
  if (num_rows <= HalfSplitKernel<F>::kRows) {
    launcher.Launch(1, num_tiles, kThreads, HalfSplitKernel<F>::kSharedBytes, HalfSplitKernel<F>{linear});
  } else {
    launcher.Launch((num_rows + HalfTileKernel<F>::kRows - 1) / HalfTileKernel<F>::kRows, (num_tiles + kHalfWarps - 1) / kHalfWarps,
                    kThreads, HalfTileKernel<F>::kSharedBytes, HalfTileKernel<F>{linear});
  }
}

template <typename Launcher>
void LaunchParts(Launcher& launcher, const DeviceOptions& options, const LinearArgs& args, const StreamInput& input,
                 const LinearOutput& output) {
  const PackedView& weights = output.weights;
  const Int8Rows codes = {args.quantized};
  const FloatRows floats = {args.x, args.x_stride};
  if (weights.in_chunks) return LaunchStreamOutput(launcher, output, input);
  const int64_t num_tiles = output.num_tiles;
  const int64_t num_groups = (args.num_rows + kLinearRows - 1) / kLinearRows;
  const auto launch = [&](const auto& kernel) { launcher.Launch(num_groups, num_tiles, kLinearThreads, kernel.kSharedBytes, kernel); };
  if (IsQuantizedPacked(weights.type) && args.num_rows > kLinearRows) {
    launcher.Launch((args.num_rows + kMatrixRows - 1) / kMatrixRows, (num_tiles + kMatrixWarps - 1) / kMatrixWarps,
                    kMatrixWarps * kWarpLanes, 0, MatrixLinearKernel{output, codes});
  } else if (IsQuantizedPacked(weights.type)) {
    launch(LinearKernel<Int8Rows>{output, codes});
  } else if (options.bf16_linear && weights.type == PackedType::kBF16) {
    LaunchHalfLinear<HalfFormat::kBF16>(launcher, {output, floats});
  } else if (options.f16_linear && weights.type == PackedType::kF16) {
    LaunchHalfLinear<HalfFormat::kF16>(launcher, {output, floats});
  } else {
    launch(LinearKernel<FloatRows>{output, floats});
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

// Norm and activation are parts of the launches where these take them.
template <typename Launcher>
void LaunchLinear(Launcher& launcher, const DeviceOptions& options, const StreamChoices& choices, int num_multiprocessors,
                  const LinearStep& step) {
  const LinearArgs& layers = step.layers;
  StreamInput input = {.rows = layers.quantized, .choices = choices, .num_multiprocessors = num_multiprocessors};
  if (step.norm != nullptr) {
    const bool all_in_chunks =
        std::all_of(layers.parts, layers.parts + layers.num_parts, [](const LinearPart& part) { return part.weights.in_chunks; });
    if (all_in_chunks && TakesNorm(*step.norm, input.rows)) {
      input.norm = *step.norm;
    } else {
      LaunchNorm(launcher, *step.norm, step.input.quantized);
    }
  }
  const bool gated = step.activation != nullptr && TakesActivation(step);
  ForEachOutput(layers, [&](const LinearOutput& output) {
    if (gated) return LaunchStreamOutput(launcher, GatedOutput{output, *step.activation, step.forms.quantized}, input);
    LaunchParts(launcher, options, layers, input, output);
  });
  if (step.activation != nullptr && !gated) LaunchActivation(launcher, *step.activation, step.forms.quantized);
}

}  // namespace llmi::cuda

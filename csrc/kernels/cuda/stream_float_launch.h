// Launches for float weights that come through a stream: which form of StreamHalfKernel or StreamFloatKernel serves a layer.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

#include "core/aligned.h"
#include "core/errors.h"
#include "kernels/cuda/linear_kernels.h"
#include "kernels/cuda/row_kernels.h"
#include "kernels/cuda/stream_float_kernel.h"
#include "kernels/cuda/stream_half_kernel.h"
#include "kernels/cuda/tile_half_kernel.h"

namespace llmi::cuda {

// Prompts on tensor cores. Tiles of 64 outputs where those of 128 would leave multiprocessors without work.
template <HalfFormat F, typename Launcher>
void LaunchTileHalf(Launcher& launcher, int num_multiprocessors, const LinearOutput& output, const uint8_t* fragments) {
  const int64_t grid_x = (output.num_rows + kHalfTileRows - 1) / kHalfTileRows;
  const auto launch = [&]<int kWarpTiles>() {
    using Kernel = TileHalfKernel<F, kWarpTiles>;
    const int64_t grid_y = (output.num_tiles + Kernel::kBlockTiles - 1) / Kernel::kBlockTiles;
    launcher.Launch(grid_x, grid_y, Kernel::kThreads, Kernel::kSharedBytes, Kernel{output, fragments});
  };
  const int64_t num_blocks = grid_x * ((output.num_tiles + 7) / 8);
  num_blocks >= num_multiprocessors ? launch.template operator()<4>() : launch.template operator()<2>();
}

// On tensor cores. fragments: the rows of x in that format, or null where a block rounds them itself.
template <HalfFormat F, typename Launcher>
void LaunchStreamHalf(Launcher& launcher, int num_multiprocessors, const LinearOutput& output, const FloatRows& rows,
                      const uint8_t* fragments) {
  if (output.num_rows > kHalfStreamRows) return LaunchTileHalf<F>(launcher, num_multiprocessors, output, fragments);
  const int grid_x = std::min(output.num_tiles, 2 * num_multiprocessors);
  const auto launch = [&]<int kGroups, bool kIsWhole>() {
    using Kernel = StreamHalfKernel<F, kGroups, kIsWhole>;
    launcher.Launch(grid_x, (output.num_rows + kHalfStreamRows - 1) / kHalfStreamRows, kStreamThreads,
                    Kernel::SharedBytes(output.num_rows, output.weights.num_cols),
                    Kernel{output, rows.x, rows.x_stride, fragments, grid_x});
  };
  const bool is_whole = output.weights.num_cols % (2 * kHalfChunk) == 0;
  if (fragments == nullptr) return is_whole ? launch.template operator()<1, true>() : launch.template operator()<1, false>();
  if (!is_whole) return launch.template operator()<2, false>();
  output.num_rows <= 2 * kHalfRows ? launch.template operator()<2, true>() : launch.template operator()<4, true>();
}

// In the CPU's order.
template <PackedType kType, typename Launcher>
void LaunchStreamFloat(Launcher& launcher, int num_multiprocessors, const LinearOutput& output, const FloatRows& rows) {
  const auto launch = [&]<int kXRows, bool kIsWhole>() {
    using Kernel = StreamFloatKernel<kType, kXRows, kIsWhole>;
    const int grid_x = std::min(output.num_tiles, Kernel::kBlocks * num_multiprocessors);
    launcher.Launch(grid_x, (output.num_rows + kFloatStreamRows - 1) / kFloatStreamRows, kStreamThreads, Kernel::kSharedBytes,
                    Kernel{output, rows.x, rows.x_stride, grid_x});
  };
  const bool is_aligned = reinterpret_cast<uintptr_t>(rows.x) % 16 == 0 && rows.x_stride % 4 == 0;
  const bool is_whole = output.weights.num_cols % StreamFloatKernel<kType, 1, true>::kUnitColumns == 0;
  if (!is_aligned || !is_whole) return launch.template operator()<8, false>();
  output.num_rows == 1 ? launch.template operator()<1, true>() : launch.template operator()<8, true>();
}

// The device's memory for fragments.
struct FragmentRoom {
  AlignedBuffer& buffer;
  MemorySource* source;

  uint8_t* Reserve(int64_t num_bytes) const {
    buffer.Reserve(static_cast<size_t>(num_bytes), "activations in 16 bits", source);
    return buffer.data();
  }
};

// What the parts of a launch read.
struct FloatInput {
  FloatRows rows;
  FragmentRoom room;
  bool bf16_on_tensor_cores;
  bool f16_on_tensor_cores;
  int num_multiprocessors;
  bool in_room = false;  // x is there; a device has one format on tensor cores (DeviceOptions)
};

// On tensor cores, after a launch that rounds x where blocks cannot do it.
template <HalfFormat F, typename Launcher>
void LaunchHalf(Launcher& launcher, const LinearOutput& output, FloatInput* input) {
  const int64_t num_cols = output.weights.num_cols;
  const FloatRows& rows = input->rows;
  uint8_t* fragments = nullptr;
  if (!StreamHalfKernel<F, 1, true>::Rounds(output.num_rows, num_cols)) {
    fragments = input->room.Reserve(NumFragmentSets(output.num_rows) * FragmentSetBytes(num_cols));
    if (!std::exchange(input->in_room, true)) {
      launcher.Launch(output.num_rows, 1, kRowThreads, 0, RoundToFragmentsKernel<F>{rows.x, rows.x_stride, num_cols, fragments});
    }
  }
  LaunchStreamHalf<F>(launcher, input->num_multiprocessors, output, rows, fragments);
}

template <typename Launcher>
void LaunchFloats(Launcher& launcher, const LinearOutput& output, FloatInput* input) {
  const PackedType type = output.weights.type;
  if (type == PackedType::kBF16 && input->bf16_on_tensor_cores) return LaunchHalf<HalfFormat::kBF16>(launcher, output, input);
  if (type == PackedType::kF16 && input->f16_on_tensor_cores) return LaunchHalf<HalfFormat::kF16>(launcher, output, input);
  switch (type) {
    case PackedType::kF32: return LaunchStreamFloat<PackedType::kF32>(launcher, input->num_multiprocessors, output, input->rows);
    case PackedType::kF16: return LaunchStreamFloat<PackedType::kF16>(launcher, input->num_multiprocessors, output, input->rows);
    case PackedType::kBF16: return LaunchStreamFloat<PackedType::kBF16>(launcher, input->num_multiprocessors, output, input->rows);
    default: CheckInternal(false, "a type without floats");
  }
}

}  // namespace llmi::cuda

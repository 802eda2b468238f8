// Launches for float weights that come through a stream: which form of StreamHalfKernel or StreamFloatKernel serves a layer.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/errors.h"
#include "kernels/cuda/fragment_room.h"
#include "kernels/cuda/linear_kernels.h"
#include "kernels/cuda/norm_prologue.h"
#include "kernels/cuda/row_kernels.h"
#include "kernels/cuda/stream_float_kernel.h"
#include "kernels/cuda/stream_half_kernel.h"
#include "kernels/cuda/stream_launch.h"
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

// Bytes of shared memory behind a kernel's own, for the norm that each block makes.
inline size_t NormBytes(const NormArgs& norm) { return norm.x == nullptr ? 0 : NormedFloatsBytes(norm.num_rows, norm.size); }

// On tensor cores. fragments: the rows of x in that format, or null where a block rounds them itself, or their norm (x null: none).
template <HalfFormat F, typename Launcher>
void LaunchStreamHalf(Launcher& launcher, int num_multiprocessors, const LinearOutput& output, const FloatRows& rows, const NormArgs& norm,
                      const uint8_t* fragments) {
  if (output.num_rows > kHalfStreamRows) return LaunchTileHalf<F>(launcher, num_multiprocessors, output, fragments);
  const int grid_x = std::min(output.num_tiles, 2 * num_multiprocessors);
  const auto launch = [&]<int kGroups, bool kIsWhole>() {
    using Kernel = StreamHalfKernel<F, kGroups, kIsWhole>;
    launcher.Launch(grid_x, (output.num_rows + kHalfStreamRows - 1) / kHalfStreamRows, kStreamThreads,
                    Kernel::SharedBytes(output.num_rows, output.weights.num_cols) + NormBytes(norm),
                    Kernel{output, rows, norm, fragments, grid_x});
  };
  const bool is_whole = output.weights.num_cols % (2 * kHalfChunk) == 0;
  if (fragments == nullptr) return is_whole ? launch.template operator()<1, true>() : launch.template operator()<1, false>();
  if (!is_whole) return launch.template operator()<2, false>();
  output.num_rows <= 2 * kHalfRows ? launch.template operator()<2, true>() : launch.template operator()<4, true>();
}

// In the CPU's order. norm: of the one row that is aligned and whole (TakesFloatNorm); x null: none.
template <PackedType kType, typename Launcher>
void LaunchStreamFloat(Launcher& launcher, int num_multiprocessors, const LinearOutput& output, const FloatRows& rows,
                       const NormArgs& norm) {
  const auto launch = [&]<int kXRows, bool kIsWhole>() {
    using Kernel = StreamFloatKernel<kType, kXRows, kIsWhole>;
    const int grid_x = std::min(output.num_tiles, Kernel::kBlocks * num_multiprocessors);
    launcher.Launch(grid_x, (output.num_rows + kFloatStreamRows - 1) / kFloatStreamRows, kStreamThreads,
                    Kernel::kSharedBytes + NormBytes(norm), Kernel{output, rows, norm, grid_x});
  };
  const bool is_aligned = norm.x != nullptr || (reinterpret_cast<uintptr_t>(rows.x) % 16 == 0 && rows.x_stride % 4 == 0);
  const bool is_whole = output.weights.num_cols % StreamFloatKernel<kType, 1, true>::kUnitColumns == 0;
  if (!is_aligned || !is_whole) return launch.template operator()<8, false>();
  output.num_rows == 1 ? launch.template operator()<1, true>() : launch.template operator()<8, true>();
}

// What the parts of a launch read.
struct FloatInput {
  FloatRows rows;
  FragmentRoom& room;
  int num_multiprocessors;
  NormArgs norm = {};  // x null: none; else the blocks make it, and rows are not read
};

// Whether the blocks of these layers' kernels can make the norm of what they read.
inline bool TakesFloatNorm(const LinearArgs& layers, const NormArgs& norm, const FragmentRoom& room) {
  if (norm.num_rows > kMostNormedRows || norm.x_stride % kLaneValues != 0 || norm.size % kLaneValues != 0) return false;
  if (reinterpret_cast<uintptr_t>(norm.x) % 16 != 0) return false;
  return std::all_of(layers.parts, layers.parts + layers.num_parts, [&](const LinearPart& part) {
    const PackedView& weights = part.weights;
    if (!weights.in_chunks || !HasFloatPieces(weights.type)) return false;
    if (room.Takes(weights.type)) {
      return BlocksRound(norm.num_rows, norm.size) &&
             StreamHalfKernel<HalfFormat::kBF16, 1, true>::SharedBytes(norm.num_rows, norm.size) + NormBytes(norm) <= kMostStreamShared;
    }
    const auto takes_one = [&]<PackedType kType>() {
      const bool is_whole = norm.size % StreamFloatKernel<kType, 1, true>::kUnitColumns == 0;
      const size_t own = is_whole ? StreamFloatKernel<kType, 1, true>::kSharedBytes : StreamFloatKernel<kType, 8, false>::kSharedBytes;
      return norm.num_rows == 1 && own + NormBytes(norm) <= kMostStreamShared;
    };
    switch (weights.type) {
      case PackedType::kF32: return takes_one.template operator()<PackedType::kF32>();
      case PackedType::kF16: return takes_one.template operator()<PackedType::kF16>();
      default: return takes_one.template operator()<PackedType::kBF16>();
    }
  });
}

// On tensor cores, after a launch that rounds x where blocks cannot do it and no launch has left it rounded.
template <HalfFormat F, typename Launcher>
void LaunchHalf(Launcher& launcher, const LinearOutput& output, const FloatInput& input) {
  const int64_t num_cols = output.weights.num_cols;
  const FloatRows& rows = input.rows;
  const uint8_t* fragments = nullptr;
  if (!BlocksRound(output.num_rows, num_cols)) {
    const FragmentRoom::Held held = {rows.x, rows.x_stride, output.num_rows, num_cols};
    fragments = input.room.Find(held);
    if (fragments == nullptr) {
      const HalfRows rounded = input.room.Make(output.num_rows, num_cols);
      launcher.Launch(output.num_rows, 1, kRowThreads, 0, RoundToFragmentsKernel{rows.x, rows.x_stride, rounded});
      input.room.Hold(held);
      fragments = rounded.fragments;
    }
  }
  LaunchStreamHalf<F>(launcher, input.num_multiprocessors, output, rows, input.norm, fragments);
}

template <typename Launcher>
void LaunchFloats(Launcher& launcher, const LinearOutput& output, const FloatInput& input) {
  const PackedType type = output.weights.type;
  if (input.room.Takes(type)) {
    return type == PackedType::kBF16 ? LaunchHalf<HalfFormat::kBF16>(launcher, output, input)
                                     : LaunchHalf<HalfFormat::kF16>(launcher, output, input);
  }
  const int num_multiprocessors = input.num_multiprocessors;
  switch (type) {
    case PackedType::kF32: return LaunchStreamFloat<PackedType::kF32>(launcher, num_multiprocessors, output, input.rows, input.norm);
    case PackedType::kF16: return LaunchStreamFloat<PackedType::kF16>(launcher, num_multiprocessors, output, input.rows, input.norm);
    case PackedType::kBF16: return LaunchStreamFloat<PackedType::kBF16>(launcher, num_multiprocessors, output, input.rows, input.norm);
    default: CheckInternal(false, "a type without floats");
  }
}

}  // namespace llmi::cuda

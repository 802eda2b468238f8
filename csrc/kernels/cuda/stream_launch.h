// Launches of StreamLinearKernel: which form of it serves a layer.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/errors.h"
#include "kernels/cuda/stream_linear_kernel.h"

namespace llmi::cuda {

// Blocks for two on each multiprocessor go through the tiles.
template <PackedType kType, ActivationForm kForm, StreamRowsForm kRows, bool kIsWhole, typename Launcher>
void LaunchStreamForm(Launcher& launcher, int num_multiprocessors, const LinearOutput& output, const Int8Rows& rows) {
  const int64_t grid_x = std::min(NumTiles(output.weights.num_rows), int64_t{2} * num_multiprocessors);
  using Kernel = StreamLinearKernel<kType, kForm, kRows, kIsWhole>;
  launcher.Launch(
      grid_x, (output.num_rows + kStreamRows - 1) / kStreamRows, kStreamThreads, Kernel::kSharedBytes,
      Kernel{output, rows, grid_x, static_cast<unsigned>(output.weights.num_cols / kBlockSize), ChunkTableOf(output.weights.table)});
}

template <PackedType kType, ActivationForm kForm, typename Launcher>
void LaunchStreamRows(Launcher& launcher, int num_multiprocessors, const LinearOutput& output, const Int8Rows& rows) {
  const auto launch = [&]<StreamRowsForm kRows, bool kIsWhole>() {
    LaunchStreamForm<kType, kForm, kRows, kIsWhole>(launcher, num_multiprocessors, output, rows);
  };
  // Units of half a chunk for 16 rows would share pieces of codes of 5 and 6 bits; for types with more scales they save nothing.
  constexpr bool kHasSixteen = !IsSuperBlockPacked(kType) && !IsTablePacked(kType);
  if constexpr (!IsSuperBlockPacked(kType)) {
    if (output.weights.num_cols % (kChunkBlocks * kBlockSize) != 0) {
      return output.num_rows <= 4 ? launch.template operator()<StreamRowsForm::kFour, false>()
                                  : launch.template operator()<StreamRowsForm::kEight, false>();
    }
  }
  if (output.num_rows <= 4) return launch.template operator()<StreamRowsForm::kFour, true>();
  if constexpr (kHasSixteen) {
    if (output.num_rows > 8) return launch.template operator()<StreamRowsForm::kSixteen, true>();
  }
  launch.template operator()<StreamRowsForm::kEight, true>();
}

template <PackedType kType, typename Launcher>
void LaunchStream(Launcher& launcher, int num_multiprocessors, const LinearOutput& output, const Int8Rows& rows) {
  switch (rows.x.form()) {
    case ActivationForm::kCoarse: return LaunchStreamRows<kType, ActivationForm::kCoarse>(launcher, num_multiprocessors, output, rows);
    case ActivationForm::kFine: return LaunchStreamRows<kType, ActivationForm::kFine>(launcher, num_multiprocessors, output, rows);
    case ActivationForm::kTwoBytes: return LaunchStreamRows<kType, ActivationForm::kTwoBytes>(launcher, num_multiprocessors, output, rows);
  }
}

// Weights in chunks.
template <typename Launcher>
void LaunchStreamLinear(Launcher& launcher, int num_multiprocessors, const LinearOutput& output, const Int8Rows& rows) {
  switch (output.weights.type) {
    case PackedType::kQ4: return LaunchStream<PackedType::kQ4>(launcher, num_multiprocessors, output, rows);
    case PackedType::kQ4Min: return LaunchStream<PackedType::kQ4Min>(launcher, num_multiprocessors, output, rows);
    case PackedType::kQ4K: return LaunchStream<PackedType::kQ4K>(launcher, num_multiprocessors, output, rows);
    case PackedType::kQ5K: return LaunchStream<PackedType::kQ5K>(launcher, num_multiprocessors, output, rows);
    case PackedType::kQ6K: return LaunchStream<PackedType::kQ6K>(launcher, num_multiprocessors, output, rows);
    case PackedType::kTable: return LaunchStream<PackedType::kTable>(launcher, num_multiprocessors, output, rows);
    case PackedType::kTableK: return LaunchStream<PackedType::kTableK>(launcher, num_multiprocessors, output, rows);
    case PackedType::kTableExp: return LaunchStream<PackedType::kTableExp>(launcher, num_multiprocessors, output, rows);
    case PackedType::kQ8: return LaunchStream<PackedType::kQ8>(launcher, num_multiprocessors, output, rows);
    default: CheckInternal(false, "a type without chunks");
  }
}

}  // namespace llmi::cuda

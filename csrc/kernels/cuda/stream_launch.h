// Launches of StreamLinearKernel, in the form that stream_choices.h chose.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/errors.h"
#include "kernels/cuda/stream_linear_kernel.h"

namespace llmi::cuda {

struct StreamGrid {
  StreamRowsForm rows;
  int most_blocks;  // that go through the tiles
};

template <PackedType kType, ActivationForm kForm, StreamRowsForm kRows, bool kIsWhole, typename Launcher>
void LaunchStreamForm(Launcher& launcher, const StreamGrid& grid, const LinearOutput& output, const Int8Rows& rows) {
  const int64_t grid_x = std::min(NumTiles(output.weights.num_rows), int64_t{grid.most_blocks});
  using Kernel = StreamLinearKernel<kType, kForm, kRows, kIsWhole>;
  launcher.Launch(
      grid_x, (output.num_rows + kStreamRows - 1) / kStreamRows, kStreamThreads, Kernel::kSharedBytes,
      Kernel{output, rows, grid_x, static_cast<unsigned>(output.weights.num_cols / kBlockSize), ChunkTableOf(output.weights.table)});
}

template <PackedType kType, ActivationForm kForm, typename Launcher>
void LaunchStreamRows(Launcher& launcher, const StreamGrid& grid, const LinearOutput& output, const Int8Rows& rows) {
  const auto launch = [&]<StreamRowsForm kRows, bool kIsWhole>() {
    LaunchStreamForm<kType, kForm, kRows, kIsWhole>(launcher, grid, output, rows);
  };
  if constexpr (!IsSuperBlockPacked(kType)) {
    if (output.weights.num_cols % (kChunkBlocks * kBlockSize) != 0) {
      return grid.rows == StreamRowsForm::kFour ? launch.template operator()<StreamRowsForm::kFour, false>()
                                                : launch.template operator()<StreamRowsForm::kEight, false>();
    }
  }
  if (grid.rows == StreamRowsForm::kFour) return launch.template operator()<StreamRowsForm::kFour, true>();
  if constexpr (HasSetsOfSixteen(kType)) {
    if (grid.rows == StreamRowsForm::kSixteen) return launch.template operator()<StreamRowsForm::kSixteen, true>();
  }
  launch.template operator()<StreamRowsForm::kEight, true>();
}

template <PackedType kType, typename Launcher>
void LaunchStream(Launcher& launcher, const StreamGrid& grid, const LinearOutput& output, const Int8Rows& rows) {
  switch (rows.x.form()) {
    case ActivationForm::kCoarse: return LaunchStreamRows<kType, ActivationForm::kCoarse>(launcher, grid, output, rows);
    case ActivationForm::kFine: return LaunchStreamRows<kType, ActivationForm::kFine>(launcher, grid, output, rows);
    case ActivationForm::kTwoBytes: return LaunchStreamRows<kType, ActivationForm::kTwoBytes>(launcher, grid, output, rows);
  }
}

// Weights in chunks.
template <typename Launcher>
void LaunchStreamLinear(Launcher& launcher, const StreamGrid& grid, const LinearOutput& output, const Int8Rows& rows) {
  switch (output.weights.type) {
    case PackedType::kQ4: return LaunchStream<PackedType::kQ4>(launcher, grid, output, rows);
    case PackedType::kQ4Min: return LaunchStream<PackedType::kQ4Min>(launcher, grid, output, rows);
    case PackedType::kQ4K: return LaunchStream<PackedType::kQ4K>(launcher, grid, output, rows);
    case PackedType::kQ5: return LaunchStream<PackedType::kQ5>(launcher, grid, output, rows);
    case PackedType::kQ5Min: return LaunchStream<PackedType::kQ5Min>(launcher, grid, output, rows);
    case PackedType::kQ5K: return LaunchStream<PackedType::kQ5K>(launcher, grid, output, rows);
    case PackedType::kQ6K: return LaunchStream<PackedType::kQ6K>(launcher, grid, output, rows);
    case PackedType::kTable: return LaunchStream<PackedType::kTable>(launcher, grid, output, rows);
    case PackedType::kTableK: return LaunchStream<PackedType::kTableK>(launcher, grid, output, rows);
    case PackedType::kTableExp: return LaunchStream<PackedType::kTableExp>(launcher, grid, output, rows);
    case PackedType::kQ8: return LaunchStream<PackedType::kQ8>(launcher, grid, output, rows);
    default: CheckInternal(false, "a type without chunks");
  }
}

}  // namespace llmi::cuda

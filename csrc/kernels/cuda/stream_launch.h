// Launches of the kernels over weights in chunks: which form serves a layer, and what it does before and after it.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/errors.h"
#include "kernels/cuda/prompt_linear_kernel.h"
#include "kernels/cuda/stream_choices.h"
#include "kernels/cuda/stream_linear_kernel.h"
#include "kernels/ops/linear_step.h"

namespace llmi::cuda {

constexpr size_t kMostStreamShared = 96 * 1024;  // bytes; so two blocks fit a multiprocessor
constexpr size_t kMostStreamRing = 44 * 1024;    // of it, what a kernel for four rows has without normed rows

// What the kernels read.
struct StreamInput {
  QuantizedRows rows;
  NormArgs norm = {};  // StreamKernel::norm
  const StreamChoices& choices;
  int num_multiprocessors;
};

template <PackedType kType, ActivationForm kForm, StreamRowsForm kRows, bool kIsWhole, typename Output>
using StreamKernelOf = std::conditional_t<std::is_same_v<Output, GatedOutput>, StreamGatedKernel<kType, kForm, kRows, kIsWhole>,
                                          StreamLinearKernel<kType, kForm, kRows, kIsWhole>>;

// At most max_blocks blocks go through the tiles.
template <PackedType kType, ActivationForm kForm, StreamRowsForm kRows, bool kIsWhole, typename Output, typename Launcher>
void LaunchStreamForm(Launcher& launcher, const Output& output, const StreamInput& input, int max_blocks) {
  const int grid_x = std::min(output.num_tiles / Output::kGroupTiles, max_blocks);
  using Kernel = StreamKernelOf<kType, kForm, kRows, kIsWhole, Output>;
  static_assert(kRows != StreamRowsForm::kFour || Kernel::kSharedBytes <= kMostStreamRing);
  size_t shared_bytes = Kernel::kSharedBytes;
  if (input.norm.x != nullptr) shared_bytes += NormedRoom(output.num_rows, output.weights.num_cols, input.rows).size;
  launcher.Launch(grid_x, (output.num_rows + kStreamRows - 1) / kStreamRows, kStreamThreads, shared_bytes,
                  Kernel{{output,
                          {input.rows},
                          input.norm,
                          grid_x,
                          static_cast<unsigned>(output.weights.num_cols / kBlockSize),
                          ChunkTableOf(output.weights.table)}});
}

template <PackedType kType, ActivationForm kForm, typename Output, typename Launcher>
void LaunchStreamRows(Launcher& launcher, const Output& output, const StreamInput& input) {
  // Normed rows have room beside the ring of a kernel for four rows.
  const StreamVariant variant = input.norm.x != nullptr
                                    ? StreamVariant{StreamRowsForm::kFour, 2}
                                    : input.choices.Of(kType, output.num_tiles * kTileRows, output.weights.num_cols, output.num_rows);
  const auto launch = [&]<StreamRowsForm kRows, bool kIsWhole>() {
    LaunchStreamForm<kType, kForm, kRows, kIsWhole>(launcher, output, input, variant.blocks * input.num_multiprocessors);
  };
  if constexpr (!IsSuperBlockPacked(kType)) {
    if (output.weights.num_cols % (kChunkBlocks * kBlockSize) != 0) {
      return variant.rows == StreamRowsForm::kFour ? launch.template operator()<StreamRowsForm::kFour, false>()
                                                   : launch.template operator()<StreamRowsForm::kEight, false>();
    }
  }
  if (variant.rows == StreamRowsForm::kFour) return launch.template operator()<StreamRowsForm::kFour, true>();
  if constexpr (HasSetsOfSixteen(kType)) {
    if (variant.rows == StreamRowsForm::kSixteen) return launch.template operator()<StreamRowsForm::kSixteen, true>();
  }
  launch.template operator()<StreamRowsForm::kEight, true>();
}

template <PackedType kType, typename Output, typename Launcher>
void LaunchStream(Launcher& launcher, const Output& output, const StreamInput& input) {
  switch (input.rows.form()) {
    case ActivationForm::kCoarse: return LaunchStreamRows<kType, ActivationForm::kCoarse>(launcher, output, input);
    case ActivationForm::kTwoBytes: return LaunchStreamRows<kType, ActivationForm::kTwoBytes>(launcher, output, input);
    case ActivationForm::kFine:
      if constexpr (std::is_same_v<Output, LinearOutput>) {
        return LaunchStreamRows<kType, ActivationForm::kFine>(launcher, output, input);
      }
  }
  CheckInternal(false, "gate and up read codes with a scale for 32 columns");
}

// Whether PromptLinearKernel serves this many rows of these weights.
inline bool GoesByPromptTiles(const PackedView& weights, int64_t num_rows, const QuantizedRows& rows) {
  return num_rows > kStreamRows && HasPromptTiles(weights.type) && weights.num_cols % (kChunkBlocks * kBlockSize) == 0 &&
         rows.form() != ActivationForm::kFine;
}
template <PackedType kType, ActivationForm kForm, typename Launcher>
void LaunchPromptForm(Launcher& launcher, const LinearOutput& output, const QuantizedRows& rows) {
  using Kernel = PromptLinearKernel<kType, kForm>;
  launcher.Launch((output.num_rows + kPromptRows - 1) / kPromptRows, (output.num_tiles + Kernel::kBlockTiles - 1) / Kernel::kBlockTiles,
                  Kernel::kThreads, Kernel::kSharedBytes,
                  Kernel{output, rows, static_cast<unsigned>(output.weights.num_cols / kBlockSize)});
}
template <PackedType kType, typename Launcher>
void LaunchPrompt(Launcher& launcher, const LinearOutput& output, const QuantizedRows& rows) {
  rows.low != nullptr ? LaunchPromptForm<kType, ActivationForm::kTwoBytes>(launcher, output, rows)
                      : LaunchPromptForm<kType, ActivationForm::kCoarse>(launcher, output, rows);
}
template <typename Launcher>
void LaunchPromptOutput(Launcher& launcher, const LinearOutput& output, const QuantizedRows& rows) {
  switch (output.weights.type) {
    case PackedType::kQ4: return LaunchPrompt<PackedType::kQ4>(launcher, output, rows);
    case PackedType::kQ4Min: return LaunchPrompt<PackedType::kQ4Min>(launcher, output, rows);
    case PackedType::kQ4K: return LaunchPrompt<PackedType::kQ4K>(launcher, output, rows);
    case PackedType::kQ6K: return LaunchPrompt<PackedType::kQ6K>(launcher, output, rows);
    case PackedType::kQ8: return LaunchPrompt<PackedType::kQ8>(launcher, output, rows);
    default: CheckInternal(false, "a type without tiles for prompts");
  }
}

// Weights in chunks.
template <typename Output, typename Launcher>
void LaunchStreamOutput(Launcher& launcher, const Output& output, const StreamInput& input) {
  if constexpr (std::is_same_v<Output, LinearOutput>) {
    if (GoesByPromptTiles(output.weights, output.num_rows, input.rows)) return LaunchPromptOutput(launcher, output, input.rows);
  }
  switch (output.weights.type) {
    case PackedType::kQ4: return LaunchStream<PackedType::kQ4>(launcher, output, input);
    case PackedType::kQ4Min: return LaunchStream<PackedType::kQ4Min>(launcher, output, input);
    case PackedType::kQ4K: return LaunchStream<PackedType::kQ4K>(launcher, output, input);
    case PackedType::kQ5: return LaunchStream<PackedType::kQ5>(launcher, output, input);
    case PackedType::kQ5Min: return LaunchStream<PackedType::kQ5Min>(launcher, output, input);
    case PackedType::kQ5K: return LaunchStream<PackedType::kQ5K>(launcher, output, input);
    case PackedType::kQ6K: return LaunchStream<PackedType::kQ6K>(launcher, output, input);
    case PackedType::kTable: return LaunchStream<PackedType::kTable>(launcher, output, input);
    case PackedType::kTableK: return LaunchStream<PackedType::kTableK>(launcher, output, input);
    case PackedType::kTableExp: return LaunchStream<PackedType::kTableExp>(launcher, output, input);
    case PackedType::kQ8: return LaunchStream<PackedType::kQ8>(launcher, output, input);
    default: CheckInternal(false, "a type without chunks");
  }
}

// Whether a launch over these weights can make the rows that it reads: few, and small enough for its shared memory. Of Q4_0, a row of 16
// bits a value takes 6.3 bytes a column.
inline bool TakesNorm(const NormArgs& norm, const QuantizedRows& rows) {
  return norm.num_rows <= kMostNormedRows && norm.x_stride % kLaneValues == 0 &&
         kMostStreamRing + NormedRoom(norm.num_rows, norm.size, rows).size <= kMostStreamShared;
}
// Whether one launch can multiply, activate, and make codes.
inline bool TakesActivation(const LinearStep& step) {
  const PackedView& gate = step.layers.parts[0].weights;
  return gate.in_chunks && IsQuantizedPacked(gate.type) && GoTogether(gate, step.layers.parts[1].weights) &&
         gate.num_rows % kBlockSize == 0 && !step.layers.quantized.fine &&
         !GoesByPromptTiles(gate, step.layers.num_rows, step.layers.quantized);
}

}  // namespace llmi::cuda

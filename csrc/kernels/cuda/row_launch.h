// Launches of norms, activations and codes.
#pragma once

#include <cstdint>

#include "kernels/cuda/fragment_room.h"
#include "kernels/cuda/row_kernels.h"

namespace llmi::cuda {

template <typename Launcher>
void LaunchQuantize(Launcher& launcher, const float* x, int64_t num_rows, const QuantizedRows& out) {
  const int64_t num_blocks = num_rows * (out.num_cols / kBlockSize);
  launcher.Launch((num_blocks + QuantizeRowsKernel::kBlocks - 1) / QuantizeRowsKernel::kBlocks, 1, kRowThreads, 0,
                  QuantizeRowsKernel{x, num_blocks, out});
}

// forms: codes null: not wanted. They are a launch of their own where groups do not consist of whole blocks. Whole rows are left in `room`.
template <typename Launcher>
void LaunchNorm(Launcher& launcher, const NormArgs& args, const QuantizedRows& forms, FragmentRoom& room) {
  const bool at_once = args.size % kBlockSize == 0;
  const HalfRows halves = args.num_groups == 1 ? room.Make(args.num_rows, args.size) : HalfRows{};
  launcher.Launch(args.num_rows, args.num_groups, kRowThreads, NormKernel::kSharedBytes,
                  NormKernel{args, at_once ? forms : QuantizedRows{}, halves});
  if (halves.fragments != nullptr) room.Hold({args.out, args.out_stride, args.num_rows, args.size});
  if (!at_once && forms.codes != nullptr) LaunchQuantize(launcher, args.out, args.num_rows, forms);
}

template <typename Launcher>
void LaunchActivation(Launcher& launcher, const ActivationArgs& args, const QuantizedRows& forms, FragmentRoom& room) {
  const HalfRows halves = room.Make(args.num_rows, args.size);
  launcher.Launch(args.num_rows, (args.size + ActivationKernel::kColumns - 1) / ActivationKernel::kColumns, kRowThreads, 0,
                  ActivationKernel{args, forms, halves});
  if (halves.fragments != nullptr) room.Hold({args.out, args.size, args.num_rows, args.size});
}

}  // namespace llmi::cuda

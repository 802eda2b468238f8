// The variants of StreamLinearKernel that a GPU measured as the fastest (`python benchmarks/gpu.py` prints the lines). None has measured
// yet.
#pragma once

#include <span>

#include "kernels/cuda/stream_choices.h"

namespace llmi::cuda {

constexpr std::span<const StreamChoice> kStreamTable = {};

}  // namespace llmi::cuda

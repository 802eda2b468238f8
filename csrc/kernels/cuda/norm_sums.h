// The sums of norms, by the threads of a block: 16 lanes a row (kernels/ops/norm.h).
#pragma once

#include <cstdint>

#include "core/scalar_math.h"
#include "kernels/cpu/reference/elementwise.h"
#include "kernels/cpu/reference/lanes.h"
#include "kernels/cuda/block.h"
#include "kernels/ops/norm.h"

namespace llmi::cuda {

// Of a row or a group, in shared memory.
struct NormSums {
  float lanes[16];
  float mean;  // kLayer
  float inverse;

  LLMI_HD reference::NormedGroup Group(const NormArgs& args, int64_t group) const {
    reference::NormedGroup normed = reference::NormedGroupOf(args, group);
    if (normed.is_layer) normed.mean = mean;
    normed.inverse = inverse;
    return normed;
  }
};

// value(row, i): of num_rows rows, 16 threads each; sums: one for each row.
template <typename Block, typename Value>
LLMI_HD void FindNorms(const Block& block, const NormArgs& args, int num_rows, const Value& value, NormSums* sums) {
  constexpr int kLanes = 16;
  constexpr int kAtOnce = 8;  // values that are loaded before the first is added
  const auto size = static_cast<float>(args.size);
  const bool is_layer = args.kind == NormKind::kLayer;
  const auto add_lanes = [&](const auto& add) {
    block.ForEachThread([&](int thread) {
      const int row = thread / kLanes;
      if (row >= num_rows) return;
      float sum = 0.0f;
      int64_t i = thread % kLanes;
      for (; i + (kAtOnce - 1) * kLanes < args.size; i += kAtOnce * kLanes) {
        float values[kAtOnce];
        LLMI_UNROLL
        for (int j = 0; j < kAtOnce; ++j) values[j] = value(row, i + j * kLanes);
        LLMI_UNROLL
        for (int j = 0; j < kAtOnce; ++j) sum = add(row, values[j], sum);
      }
      for (; i < args.size; i += kLanes) sum = add(row, value(row, i), sum);
      sums[row].lanes[thread % kLanes] = sum;
    });
  };
  if (is_layer) {
    add_lanes([](int, float x, float sum) { return sum + x; });
    block.ForEachThread([&](int thread) {
      if (thread < num_rows) sums[thread].mean = reference::FoldSum(sums[thread].lanes) / size;
    });
  }
  add_lanes([&](int row, float x, float sum) {
    const float centred = is_layer ? x - sums[row].mean : x;
    return Fma(centred, centred, sum);
  });
  block.ForEachThread([&](int thread) {
    if (thread < num_rows) sums[thread].inverse = 1.0f / SqrtF32(reference::FoldSum(sums[thread].lanes) / size + args.eps);
  });
}

}  // namespace llmi::cuda

// Rows of x in 16 bits, in the order in which m16n8k16 takes its B (kernels/cuda/warp.h). A fragment has 8 rows and 32 columns: 16 bytes a
// lane, which are two instructions' words. 32 rows are a set, whose four fragments of the same columns stand side by side. Columns that are
// not there are zeros, a set's rows that are not there may be anything.
#pragma once

#include <cstdint>

#include "kernels/cuda/half_format.h"
#include "kernels/cuda/warp.h"

namespace llmi::cuda {

constexpr int kHalfRows = 8;              // of x in one instruction: a group
constexpr unsigned kFragmentGroups = 4;   // of a set
constexpr int kFragmentColumns = 32;      // of a group in a fragment
constexpr unsigned kFragmentBytes = 512;  // 32 lanes, 16 bytes each

struct alignas(16) FourWords {
  uint32_t words[4];
};

LLMI_HD constexpr int64_t NumFragments(int64_t num_cols) { return (num_cols + kFragmentColumns - 1) / kFragmentColumns; }
LLMI_HD constexpr int64_t FragmentSetBytes(int64_t num_cols) { return NumFragments(num_cols) * kFragmentGroups * kFragmentBytes; }
LLMI_HD constexpr int64_t NumFragmentSets(int64_t num_rows) {
  return (num_rows + kFragmentGroups * kHalfRows - 1) / (kFragmentGroups * kHalfRows);
}

// Two values as one word.
template <HalfFormat F>
LLMI_HD inline uint32_t RoundedPair(float low, float high) {
#ifdef __CUDA_ARCH__
  uint32_t word;
  if constexpr (F == HalfFormat::kBF16) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  }
  return word;
#else
  return RoundedTo<F>(low) | static_cast<uint32_t>(RoundedTo<F>(high)) << 16;
#endif
}

// A lane's words of a fragment: columns `first`, 8, 16 and 24 further of a row, and the next ones.
template <HalfFormat F>
LLMI_HD inline FourWords RoundedLane(const float* row, int64_t first, int64_t num_cols) {
  const auto value = [&](int64_t k) { return k < num_cols ? row[k] : 0.0f; };
  FourWords to;
  LLMI_UNROLL
  for (int i = 0; i < 4; ++i) to.words[i] = RoundedPair<F>(value(first + 8 * i), value(first + 8 * i + 1));
  return to;
}

// Block x: a row of x.
template <HalfFormat F>
struct RoundToFragmentsKernel {
  const float* x;  // rows x_stride apart
  int64_t x_stride;
  int64_t num_cols;
  uint8_t* out;  // sets

  template <typename Visit>
  void ForEachPointer(const Visit& visit) const {
    visit(x);
    visit(out);
  }

  template <typename Block>
  LLMI_HD void operator()(const Block& block) const {
    const int64_t group = block.x / kHalfRows;
    uint8_t* to =
        out + group / kFragmentGroups * FragmentSetBytes(num_cols) + group % kFragmentGroups * kFragmentBytes + block.x % kHalfRows * 64;
    block.ForEachThread([&](int thread) {
      for (int64_t i = thread; i < NumFragments(num_cols) * 4; i += block.num_threads) {
        *reinterpret_cast<FourWords*>(to + i / 4 * (kFragmentGroups * kFragmentBytes) + i % 4 * 16) =
            RoundedLane<F>(x + block.x * x_stride, i / 4 * kFragmentColumns + i % 4 * 2, num_cols);
      }
    });
  }
};

}  // namespace llmi::cuda

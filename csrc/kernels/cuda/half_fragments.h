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

// Up to this many bytes a block of a linear layer rounds its rows of x itself; more come as fragments.
constexpr int64_t kMostRounded = 32 * 1024;

struct alignas(16) FourWords {
  uint32_t words[4];
};

LLMI_HD constexpr int64_t NumFragments(int64_t num_cols) { return (num_cols + kFragmentColumns - 1) / kFragmentColumns; }
LLMI_HD constexpr int64_t FragmentSetBytes(int64_t num_cols) { return NumFragments(num_cols) * kFragmentGroups * kFragmentBytes; }
LLMI_HD constexpr int64_t NumFragmentSets(int64_t num_rows) {
  return (num_rows + kFragmentGroups * kHalfRows - 1) / (kFragmentGroups * kHalfRows);
}

// Bytes of a row in the shared memory of such a block; the odd number of lines of 64 gives the rows of eight lanes banks of their own.
LLMI_HD constexpr int64_t RoundedRowBytes(int64_t num_cols) { return (NumFragments(num_cols) | 1) * 64; }
constexpr bool BlocksRound(int64_t num_rows, int64_t num_cols) {
  return num_rows <= kHalfRows && num_rows * RoundedRowBytes(num_cols) <= kMostRounded;
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

// Where rows go in fragments.
struct HalfRows {
  uint8_t* fragments = nullptr;  // sets; null: they are not wanted
  HalfFormat format = HalfFormat::kBF16;
  int64_t num_cols = 0;
};

// Rounds columns [begin, end) of a row, which begin and end with a fragment or the row.
template <typename Block>
LLMI_HD void StoreFragments(const Block& block, const float* x_row, int64_t row, int64_t begin, int64_t end, const HalfRows& to) {
  const int64_t group = row / kHalfRows;
  uint8_t* lanes = to.fragments + group / kFragmentGroups * FragmentSetBytes(to.num_cols) + group % kFragmentGroups * kFragmentBytes +
                   row % kHalfRows * 64;
  block.ForEachThread([&](int thread) {
    for (int64_t i = begin / kFragmentColumns * 4 + thread; i < NumFragments(end) * 4; i += block.num_threads) {
      const int64_t first = i / 4 * kFragmentColumns + i % 4 * 2;
      *reinterpret_cast<FourWords*>(lanes + i / 4 * (kFragmentGroups * kFragmentBytes) + i % 4 * 16) =
          to.format == HalfFormat::kBF16 ? RoundedLane<HalfFormat::kBF16>(x_row, first, to.num_cols)
                                         : RoundedLane<HalfFormat::kF16>(x_row, first, to.num_cols);
    }
  });
}

// Block x: a row of x.
struct RoundToFragmentsKernel {
  const float* x;  // rows x_stride apart
  int64_t x_stride;
  HalfRows out;

  template <typename Visit>
  void ForEachPointer(const Visit& visit) const {
    visit(x);
    visit(out.fragments);
  }

  template <typename Block>
  LLMI_HD void operator()(const Block& block) const {
    StoreFragments(block, x + block.x * x_stride, block.x, 0, out.num_cols, out);
  }
};

}  // namespace llmi::cuda

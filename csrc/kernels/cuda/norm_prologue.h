// The norm of a few rows, and its codes, at the beginning of a kernel that multiplies them: each block makes them for itself, in shared
// memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/norm_sums.h"
#include "kernels/cuda/row_codes.h"

namespace llmi::cuda {

constexpr int64_t kMostNormedRows = 4;

// The parts of shared memory: sums, the rows in fp32, then their forms.
struct NormedRoom {
  size_t rows = 0;
  size_t codes = 0;
  size_t low = 0;
  size_t scales = 0;
  size_t sums = 0;
  size_t size = 0;

  // num_cols: a multiple of 32.
  LLMI_HD NormedRoom(int64_t num_rows, int64_t num_cols, const QuantizedRows& forms) {
    const auto values = static_cast<size_t>(num_rows * num_cols);
    const size_t num_blocks = values / static_cast<size_t>(kBlockSize);
    rows = kMostNormedRows * sizeof(NormSums);
    codes = rows + values * sizeof(float);
    low = codes + values;
    scales = low + (forms.low != nullptr ? values : 0);
    sums = scales + num_blocks * (forms.fine ? 2 : 1) * sizeof(float);
    size = sums + num_blocks * sizeof(float);
  }
};
static_assert(sizeof(NormSums) * kMostNormedRows % 16 == 0);

// Copies the rows to shared memory, and finds what norms them.
template <typename Block>
LLMI_HD void StageNorm(const Block& block, const NormArgs& args, NormSums* sums, float* rows) {
  const int64_t size = args.size;
  block.ForEachThread([&](int thread) {
    for (int64_t row = 0; row < args.num_rows; ++row) {
      for (int64_t i = int64_t{thread} * kLaneValues; i < size; i += int64_t{block.num_threads} * kLaneValues) {
        *reinterpret_cast<FourFloats*>(rows + row * size + i) = *reinterpret_cast<const FourFloats*>(args.x + row * args.x_stride + i);
      }
    }
  });
  FindNorms(block, args, static_cast<int>(args.num_rows), [&](int row, int64_t i) { return rows[row * size + i]; }, sums);
}

// Bytes of shared memory for normed rows in fp32: sums, then the rows.
LLMI_HD constexpr size_t NormedFloatsBytes(int64_t num_rows, int64_t num_cols) {
  return kMostNormedRows * sizeof(NormSums) + static_cast<size_t>(num_rows * num_cols) * sizeof(float);
}
// Returns the normed rows.
template <typename Block>
LLMI_HD const float* NormToFloats(const Block& block, const NormArgs& args, uint8_t* shared) {
  auto* sums = reinterpret_cast<NormSums*>(shared);
  auto* rows = reinterpret_cast<float*>(sums + kMostNormedRows);
  StageNorm(block, args, sums, rows);
  block.ForEachThread([&](int thread) {
    for (int64_t row = 0; row < args.num_rows; ++row) {
      const reference::NormedGroup normed = sums[row].Group(args, 0);
      float* values = rows + row * args.size;
      for (int64_t i = thread; i < args.size; i += block.num_threads) values[i] = normed.Normed(i, values[i]);
    }
  });
  return rows;
}

// Returns the codes of the normed rows, in the forms that `wanted` has, without sums of halves.
template <typename Block>
LLMI_HD QuantizedRows NormToCodes(const Block& block, const NormArgs& args, const QuantizedRows& wanted, uint8_t* shared) {
  const NormedRoom room(args.num_rows, args.size, wanted);
  auto* sums = reinterpret_cast<NormSums*>(shared);
  auto* rows = reinterpret_cast<float*>(shared + room.rows);
  const int64_t size = args.size;
  const QuantizedRows codes = {.num_cols = size,
                               .codes = reinterpret_cast<int8_t*>(shared + room.codes),
                               .scales = reinterpret_cast<float*>(shared + room.scales),
                               .sums = reinterpret_cast<float*>(shared + room.sums),
                               .half_sums = nullptr,
                               .fine = wanted.fine,
                               .low = wanted.low != nullptr ? reinterpret_cast<int8_t*>(shared + room.low) : nullptr};
  StageNorm(block, args, sums, rows);
  const int64_t row_blocks = size / kBlockSize;
  for (int64_t row = 0; row < args.num_rows; ++row) {
    QuantizeBy(block, row_blocks, row * row_blocks, codes, [&](int64_t at) {
      const reference::NormedGroup normed = sums[row].Group(args, 0);
      FourFloats four = *reinterpret_cast<const FourFloats*>(rows + row * size + at);
      LLMI_UNROLL
      for (int i = 0; i < kLaneValues; ++i) four.values[i] = normed.Normed(at + i, four.values[i]);
      return four;
    });
  }
  block.Barrier();
  return codes;
}

}  // namespace llmi::cuda

// The emulated device's matrix instruction, for the questions of matrix_probe.h.
#pragma once

#include <atomic>

#include "kernels/cuda/matrix_probe.h"
#include "kernels/cuda/warp.h"

namespace llmi::cuda {

// For tests: an output's bits depend on other rows of A.
inline std::atomic<bool> emulated_rows_mix{false};

// m16n8k16 as HostWarp carries it out.
inline MatrixInstruction EmulatedMatrixInstruction() {
  return {"mma.m16n8k16", 8, [](std::span<const uint16_t> a, std::span<const uint16_t> b) {
            const auto pair = [](std::span<const uint16_t> matrix, int64_t row, int64_t k) {
              const uint16_t* from = matrix.data() + row * kAskedDepth + k;
              return from[0] | static_cast<uint32_t>(from[1]) << 16;
            };
            std::vector<float> d(static_cast<size_t>(kAskedRows * 8));
            for (int64_t first = 0; first < kAskedRows; first += 16) {
              HostWarp::PerLane<HalfMatrixD> sums;
              for (int64_t k = 0; k < kAskedDepth; k += kCallDepth) {
                HostWarp::PerLane<HalfMatrixA> rows;
                HostWarp::PerLane<HalfMatrixB> columns;
                for (int lane = 0; lane < kWarpLanes; ++lane) {
                  for (int i = 0; i < 4; ++i) rows[lane].words[i] = pair(a, first + lane / 4 + i % 2 * 8, k + lane % 4 * 2 + i / 2 * 8);
                  for (int i = 0; i < 2; ++i) columns[lane].words[i] = pair(b, lane / 4, k + lane % 4 * 2 + i * 8);
                }
                HostWarp{0}.MultiplyAdd<HalfFormat::kBF16>(rows, columns, sums);
              }
              for (int lane = 0; lane < kWarpLanes; ++lane) {
                for (int i = 0; i < 4; ++i) {
                  d[static_cast<size_t>((first + MatrixRow(lane, i)) * 8 + MatrixColumn(lane, i))] = sums[lane].values[i];
                }
              }
            }
            if (emulated_rows_mix) d[0] += d[8];
            return d;
          }};
}

}  // namespace llmi::cuda

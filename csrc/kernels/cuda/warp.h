// Warps, on a GPU and on the host: 32 lanes in step, and the matrix instruction that they carry out together.
//
// A warp's code is ForEachLane(f) by turns with collective operations. What a lane keeps from one to the next is a PerLane: a
// register on a GPU, 32 values on the host.
#pragma once

#include <cstdint>

#include "core/host_device.h"

namespace llmi::cuda {

constexpr int kWarpLanes = 32;

// Fragments of D [16][8] += A [16][16] B [16][8] in int8 (PTX ISA, mma.m16n8k16). Lane 4 g + t holds A[g][4 t + i] in byte i of
// rows[0], A[g + 8][4 t + i] in rows[1], B[4 t + i][g] in byte i of its word, and D[g][2 t], D[g][2 t + 1], D[g + 8][2 t],
// D[g + 8][2 t + 1].
struct MatrixA {
  uint32_t rows[2];
};
struct MatrixD {
  int32_t values[4];
};
// The row and column of D's value i in a lane.
LLMI_HD inline int MatrixRow(int lane, int i) { return lane / 4 + i / 2 * 8; }
LLMI_HD inline int MatrixColumn(int lane, int i) { return lane % 4 * 2 + i % 2; }

struct HostWarp {
  template <typename T>
  struct PerLane {
    T values[kWarpLanes] = {};
    LLMI_HD T& operator[](int lane) { return values[lane]; }
    LLMI_HD const T& operator[](int lane) const { return values[lane]; }
  };
  int index;  // in its block

  template <typename Body>
  LLMI_HD void ForEachLane(const Body& body) const {
    for (int lane = 0; lane < kWarpLanes; ++lane) body(index % 2 == 0 ? lane : kWarpLanes - 1 - lane);
  }

  LLMI_HD void MultiplyAdd(const PerLane<MatrixA>& a, const PerLane<uint32_t>& b, PerLane<MatrixD>& d) const {
    int8_t rows[16][16];
    int8_t columns[8][16];
    for (int lane = 0; lane < kWarpLanes; ++lane) {
      for (int i = 0; i < 4; ++i) {
        const int k = lane % 4 * 4 + i;
        rows[lane / 4][k] = static_cast<int8_t>(a[lane].rows[0] >> (8 * i));
        rows[lane / 4 + 8][k] = static_cast<int8_t>(a[lane].rows[1] >> (8 * i));
        columns[lane / 4][k] = static_cast<int8_t>(b[lane] >> (8 * i));
      }
    }
    for (int lane = 0; lane < kWarpLanes; ++lane) {
      for (int i = 0; i < 4; ++i) {
        for (int k = 0; k < 16; ++k) d[lane].values[i] += rows[MatrixRow(lane, i)][k] * columns[MatrixColumn(lane, i)][k];
      }
    }
  }
};

#ifdef __CUDACC__
struct DeviceWarp {
  template <typename T>
  struct PerLane {
    T value = {};
    __device__ T& operator[](int) { return value; }
    __device__ const T& operator[](int) const { return value; }
  };
  int index;

  template <typename Body>
  __device__ void ForEachLane(const Body& body) const {
    body(static_cast<int>(threadIdx.x) % kWarpLanes);
  }

  __device__ void MultiplyAdd(const PerLane<MatrixA>& a, const PerLane<uint32_t>& b, PerLane<MatrixD>& d) const {
    int32_t* sums = d.value.values;
    asm volatile("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
                 : "+r"(sums[0]), "+r"(sums[1]), "+r"(sums[2]), "+r"(sums[3])
                 : "r"(a.value.rows[0]), "r"(a.value.rows[1]), "r"(b.value));
  }
};
#endif

}  // namespace llmi::cuda

// Warps, on a GPU and on the host: 32 lanes in step, and the matrix instruction that they carry out together.
//
// A warp's code alternates ForEachLane(f) with collective operations. The values that a lane keeps from one to the next are a PerLane: a
// register on a GPU, 32 values on the host.
#pragma once

#include <cstdint>

#include "core/bfloat16.h"
#include "core/half.h"
#include "core/host_device.h"
#include "kernels/cuda/half_format.h"

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
// m16n8k32: D = kMagicSum + A B, A of signed or unsigned bytes. Words: rows g, g + 8, then the same of columns 16 further; B likewise.
// What A and B call columns may be any order of theirs, since the sums are exact. D's bits are those of the float 12,582,912 + sum, if the
// sum is less than 2^22 from zero.
// MultiplyHalf is m16n8k16 of half the words of each row: 0 the first, 1 the second.
struct WideMatrixA {
  uint32_t words[4];
};
struct WideMatrixB {
  uint32_t words[2];
};
constexpr int32_t kMagicSum = 0x4B400000;
constexpr float kMagicFloat = 12582912.0f;
// The row and column of D's value i in a lane.
LLMI_HD inline int MatrixRow(int lane, int i) { return lane / 4 + i / 2 * 8; }
LLMI_HD inline int MatrixColumn(int lane, int i) { return lane % 4 * 2 + i % 2; }

// The same instruction in bf16 or fp16, with sums in fp32: lane 4 g + t holds A[g][2 t], A[g][2 t + 1] in words[0], those of A[g + 8] in
// words[1], both of columns 8 further in words[2] and words[3]; B[2 t][g], B[2 t + 1][g] in words[0], B[2 t + 8][g] and the next in
// words[1]; D as above. A GPU adds the 16 products in an order of its own, the host in that of DotPair (core/bfloat16.h).
struct HalfMatrixA {
  uint32_t words[4];
};
struct HalfMatrixB {
  uint32_t words[2];
};
struct HalfMatrixD {
  float values[4];
};

// Four of the eight bytes of low and high, by the lowest four digits of hex of `which`; if a digit is above 7, eight times its byte's sign.
LLMI_HD inline uint32_t PermutedBytes(uint32_t low, uint32_t high, uint32_t which) {
#ifdef __CUDA_ARCH__
  uint32_t bytes;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(bytes) : "r"(low), "r"(high), "r"(which));
  return bytes;
#else
  const uint64_t from = low | static_cast<uint64_t>(high) << 32;
  uint32_t bytes = 0;
  for (int i = 0; i < 4; ++i) {
    const uint32_t digit = which >> (4 * i) & 15;
    const auto byte = static_cast<uint32_t>(from >> (digit % 8 * 8) & 255);
    bytes |= (digit < 8 ? byte : byte < 128 ? 0u : 255u) << (8 * i);
  }
  return bytes;
#endif
}

// The value, of which the compiler forgets how it came about: what follows from it is computed where it is used, which takes fewer
// registers.
LLMI_HD inline unsigned ComputedHere(unsigned value) {
#ifdef __CUDA_ARCH__
  asm volatile("" : "+r"(value));
#endif
  return value;
}

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

  // What lanes wrote to memory before, all may read afterwards.
  LLMI_HD void Sync() const {}
  // For each lane, the value of the lane whose number differs in these bits.
  template <typename T>
  LLMI_HD PerLane<T> Exchanged(const PerLane<T>& from, int bits) const {
    PerLane<T> to;
    for (int lane = 0; lane < kWarpLanes; ++lane) to[lane] = from[lane ^ bits];
    return to;
  }
  // Whether any lane has true.
  LLMI_HD bool Any(const PerLane<bool>& flags) const {
    bool any = false;
    for (const bool flag : flags.values) any = any || flag;
    return any;
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

  template <bool kSigned>
  LLMI_HD void Multiply(const PerLane<WideMatrixA>& a, const PerLane<WideMatrixB>& b, PerLane<MatrixD>& d) const {
    MultiplyColumns<kSigned>(a, b, 0, 32, d);
  }
  template <bool kSigned, int kHalf>
  LLMI_HD void MultiplyHalf(const PerLane<WideMatrixA>& a, const PerLane<WideMatrixB>& b, PerLane<MatrixD>& d) const {
    MultiplyColumns<kSigned>(a, b, 16 * kHalf, 16 * kHalf + 16, d);
  }

  template <HalfFormat F = HalfFormat::kBF16>
  LLMI_HD void MultiplyAdd(const PerLane<HalfMatrixA>& a, const PerLane<HalfMatrixB>& b, PerLane<HalfMatrixD>& d) const {
    float rows[16][16];
    float columns[8][16];
    for (int lane = 0; lane < kWarpLanes; ++lane) {
      for (int i = 0; i < 4; ++i) {
        const int k = lane % 4 * 2 + i % 2 + i / 2 * 8;
        rows[lane / 4][k] = Widened<F>(a[lane].words[i / 2 * 2], i % 2);
        rows[lane / 4 + 8][k] = Widened<F>(a[lane].words[i / 2 * 2 + 1], i % 2);
        columns[lane / 4][k] = Widened<F>(b[lane].words[i / 2], i % 2);
      }
    }
    for (int lane = 0; lane < kWarpLanes; ++lane) {
      for (int i = 0; i < 4; ++i) {
        float& sum = d[lane].values[i];
        const float* row = rows[MatrixRow(lane, i)];
        const float* column = columns[MatrixColumn(lane, i)];
        for (int k = 0; k < 16; k += 2) sum = Fma(row[k], column[k], Fma(row[k + 1], column[k + 1], sum));
      }
    }
  }

 private:
  template <bool kSigned>
  LLMI_HD void MultiplyColumns(const PerLane<WideMatrixA>& a, const PerLane<WideMatrixB>& b, int begin, int end,
                               PerLane<MatrixD>& d) const {
    int32_t rows[16][32];
    int32_t columns[8][32];
    for (int lane = 0; lane < kWarpLanes; ++lane) {
      for (int i = 0; i < 16; ++i) {
        const int k = lane % 4 * 4 + i % 4 + i / 8 * 16;
        const auto byte = static_cast<uint8_t>(a[lane].words[i / 4] >> (i % 4 * 8));
        rows[lane / 4 + i / 4 % 2 * 8][k] = kSigned ? static_cast<int8_t>(byte) : byte;
        if (i % 8 < 4) columns[lane / 4][k] = static_cast<int8_t>(b[lane].words[i / 8] >> (i % 4 * 8));
      }
    }
    for (int lane = 0; lane < kWarpLanes; ++lane) {
      for (int i = 0; i < 4; ++i) {
        int32_t dot = kMagicSum;
        for (int k = begin; k < end; ++k) dot += rows[MatrixRow(lane, i)][k] * columns[MatrixColumn(lane, i)][k];
        d[lane].values[i] = dot;
      }
    }
  }

  template <HalfFormat F>
  LLMI_HD static float Widened(uint32_t word, int i) {
    const auto bits = static_cast<uint16_t>(word >> (16 * i));
    return F == HalfFormat::kBF16 ? Bfloat16ToFloat(bits) : HalfToFloat(bits);
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

  __device__ void Sync() const { __syncwarp(); }
  template <typename T>
  __device__ PerLane<T> Exchanged(const PerLane<T>& from, int bits) const {
    return {__shfl_xor_sync(0xFFFFFFFFu, from.value, bits)};
  }
  __device__ bool Any(const PerLane<bool>& flags) const { return __any_sync(0xFFFFFFFFu, flags.value) != 0; }

  __device__ void MultiplyAdd(const PerLane<MatrixA>& a, const PerLane<uint32_t>& b, PerLane<MatrixD>& d) const {
    int32_t* sums = d.value.values;
    asm volatile("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
                 : "+r"(sums[0]), "+r"(sums[1]), "+r"(sums[2]), "+r"(sums[3])
                 : "r"(a.value.rows[0]), "r"(a.value.rows[1]), "r"(b.value));
  }

  template <bool kSigned>
  __device__ void Multiply(const PerLane<WideMatrixA>& a, const PerLane<WideMatrixB>& b, PerLane<MatrixD>& d) const {
    const uint32_t* rows = a.value.words;
    int32_t* sums = d.value.values;
    if constexpr (kSigned) {
      asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %10, %10, %10};"
          : "=r"(sums[0]), "=r"(sums[1]), "=r"(sums[2]), "=r"(sums[3])
          : "r"(rows[0]), "r"(rows[1]), "r"(rows[2]), "r"(rows[3]), "r"(b.value.words[0]), "r"(b.value.words[1]), "r"(kMagicSum));
    } else {
      asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %10, %10, %10};"
          : "=r"(sums[0]), "=r"(sums[1]), "=r"(sums[2]), "=r"(sums[3])
          : "r"(rows[0]), "r"(rows[1]), "r"(rows[2]), "r"(rows[3]), "r"(b.value.words[0]), "r"(b.value.words[1]), "r"(kMagicSum));
    }
  }

  template <bool kSigned, int kHalf>
  __device__ void MultiplyHalf(const PerLane<WideMatrixA>& a, const PerLane<WideMatrixB>& b, PerLane<MatrixD>& d) const {
    static_assert(kSigned, "no type has halves of unsigned codes");
    const uint32_t* rows = a.value.words + 2 * kHalf;
    int32_t* sums = d.value.values;
    asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%7, %7, %7, %7};"
        : "=r"(sums[0]), "=r"(sums[1]), "=r"(sums[2]), "=r"(sums[3])
        : "r"(rows[0]), "r"(rows[1]), "r"(b.value.words[kHalf]), "r"(kMagicSum));
  }

  template <HalfFormat F = HalfFormat::kBF16>
  __device__ void MultiplyAdd(const PerLane<HalfMatrixA>& a, const PerLane<HalfMatrixB>& b, PerLane<HalfMatrixD>& d) const {
    const uint32_t* rows = a.value.words;
    float* sums = d.value.values;
    if constexpr (F == HalfFormat::kBF16) {
      asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                   : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
                   : "r"(rows[0]), "r"(rows[1]), "r"(rows[2]), "r"(rows[3]), "r"(b.value.words[0]), "r"(b.value.words[1]));
    } else {
      asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                   : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
                   : "r"(rows[0]), "r"(rows[1]), "r"(rows[2]), "r"(rows[3]), "r"(b.value.words[0]), "r"(b.value.words[1]));
    }
  }
};
#endif

}  // namespace llmi::cuda

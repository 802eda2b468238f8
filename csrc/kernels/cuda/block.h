// Thread blocks, on a GPU and on the host.
//
// A kernel is a struct with its arguments and an operator()(block): phases, each block.ForEachThread(f), with a barrier after
// each. ForEachPointer names the memory it works on. A phase passes results to the next one in memory or in a PerWarp, never in variables,
// so that the host can run a phase thread by thread. A kernel that reads what another thread of the same phase writes is wrong: the host
// runs odd blocks backwards.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "core/host_device.h"
#include "kernels/cuda/warp.h"

namespace llmi::cuda {

constexpr int kMostThreads = 512;  // of a block; so a kernel gets 128 registers at most, and a multiprocessor holds 16 warps of any
constexpr int kMostWarps = 8;      // in a block that keeps a PerWarp

template <typename T, int kCount>
using Array = T[static_cast<size_t>(kCount)];

struct HostBlock {
  using Warp = HostWarp;
  // One T for each warp, kept from phase to phase.
  template <typename T>
  struct PerWarp {
    T values[kMostWarps] = {};
    LLMI_HD T& operator[](const HostWarp& warp) { return values[warp.index]; }
  };
  int64_t x;
  int64_t y;
  int num_threads;
  uint8_t* shared;
  int64_t* streamed_bytes;

  // Names bytes of weights that the block is about to read. The emulation adds them up, a GPU does nothing.
  LLMI_HD void Streams(int64_t num_bytes) const { *streamed_bytes += num_bytes; }

  template <typename Phase>
  LLMI_HD void ForEachThread(const Phase& phase) const {
    for (int i = 0; i < num_threads; ++i) phase((x + y) % 2 == 0 ? i : num_threads - 1 - i);
  }
  // Runs f for each warp, with no barrier afterwards.
  template <typename Body>
  LLMI_HD void ForEachWarp(const Body& body) const {
    for (int i = 0; i < num_threads / kWarpLanes; ++i) body(HostWarp{(x + y) % 2 == 0 ? i : num_threads / kWarpLanes - 1 - i});
  }
  LLMI_HD void Barrier() const {}
};

#ifdef __CUDACC__
struct DeviceBlock {
  using Warp = DeviceWarp;
  template <typename T>
  struct PerWarp {
    T value = {};
    __device__ T& operator[](const DeviceWarp&) { return value; }
  };
  int64_t x;
  int64_t y;
  int num_threads;
  uint8_t* shared;

  __device__ void Streams(int64_t) const {}

  template <typename Phase>
  __device__ void ForEachThread(const Phase& phase) const {
    phase(static_cast<int>(threadIdx.x));
    __syncthreads();
  }
  template <typename Body>
  __device__ void ForEachWarp(const Body& body) const {
    body(DeviceWarp{static_cast<int>(threadIdx.x) / kWarpLanes});
  }
  __device__ void Barrier() const { __syncthreads(); }
};
#endif

// Four products of int8, added to sum.
LLMI_HD inline int32_t DotOfFour(uint32_t a, uint32_t b, int32_t sum) {
#ifdef __CUDA_ARCH__
  return __dp4a(static_cast<int>(a), static_cast<int>(b), sum);
#else
  for (int shift = 0; shift < 32; shift += 8) sum += static_cast<int8_t>(a >> shift) * static_cast<int8_t>(b >> shift);
  return sum;
#endif
}

// Adds to an integer that threads of the block share; returns its old value.
template <typename T>
LLMI_HD T AtomicAdd(T* to, T value) {
#ifdef __CUDA_ARCH__
  using Word = std::conditional_t<sizeof(T) == 8, unsigned long long, unsigned>;
  return static_cast<T>(atomicAdd(reinterpret_cast<Word*>(to), static_cast<Word>(value)));
#else
  const T before = *to;
  *to += value;
  return before;
#endif
}

}  // namespace llmi::cuda

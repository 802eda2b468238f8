// Which of several blocks of a launch ends last: it goes on with what all of them have written, so that no other launch is needed behind
// them, in a graph neither.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/block.h"

namespace llmi::cuda {

// Reads what other blocks may have written in this launch: it is not in a multiprocessor's own cache.
template <typename T>
LLMI_HD T LoadFresh(const T* from) {
#ifdef __CUDA_ARCH__
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) % 4 == 0);
  struct {
    alignas(T) uint32_t of[sizeof(T) / 4];
  } words;
  LLMI_UNROLL
  for (int i = 0; i < static_cast<int>(sizeof(T) / 4); ++i) words.of[i] = __ldcg(reinterpret_cast<const uint32_t*>(from) + i);
  return __builtin_bit_cast(T, words);
#else
  return *from;
#endif
}

// Whoever sees what the thread writes from now on sees what it has written.
LLMI_HD inline void FenceWrites() {
#ifdef __CUDA_ARCH__
  __threadfence();
#endif
}

// *is_last, shared: whether num_blocks - 1 other blocks have called this with the same `count`, which is zero between launches. Then all
// that they wrote before is there, whatever the order in which blocks run.
template <typename Block>
LLMI_HD void CountBlock(const Block& block, uint32_t* count, uint32_t num_blocks, int32_t* is_last) {
  block.ForEachThread([&](int) { FenceWrites(); });
  block.ForEachThread([&](int thread) {
    if (thread > 0) return;
    *is_last = AtomicAdd(count, 1u) == num_blocks - 1 ? 1 : 0;
    if (*is_last != 0) *count = 0;
    FenceWrites();
  });
}

}  // namespace llmi::cuda

// Copies of 16 bytes from global to shared memory that run while the block goes on (PTX ISA, cp.async).
//
// The threads of a block issue copies, then all commit them as one group; groups land in order. Once a thread has waited for a group, it
// sees its own copies, and after a barrier those of all threads. On the host a copy lands when it is waited for; before, its target is NaN.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/block.h"

#ifndef __CUDACC__
#include <cstring>
#include <deque>
#include <utility>
#include <vector>

#include "core/errors.h"
#endif

namespace llmi::cuda {

template <typename Block>
class AsyncCopies;

#ifndef __CUDACC__
template <>
class AsyncCopies<HostBlock> {
 public:
  // `wanted`: a copy that is not is left out.
  void Copy(void* to, const void* from, bool wanted = true) {
    if (!wanted) return;
    CheckInternal((reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from)) % 16 == 0,
                  "a copy of 16 bytes that are not aligned");
    std::memset(to, 0xFF, 16);
    groups_.back().emplace_back(to, from);
  }
  void Commit() { groups_.emplace_back(); }
  // Waits until at most `kMost` of the committed groups are under way.
  template <size_t kMost>
  void Wait() {
    for (; groups_.size() > kMost + 1; groups_.pop_front()) {
      for (const auto& [to, from] : groups_.front()) std::memcpy(to, from, 16);
    }
  }

 private:
  std::deque<std::vector<std::pair<void*, const void*>>> groups_{1};
};
#else
template <>
class AsyncCopies<DeviceBlock> {
 public:
  // No branch: the copies of a warp's lanes are one instruction.
  __device__ void Copy(void* to, const void* from, bool wanted = true) const {
    const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(to));
    asm volatile("{.reg .pred wanted; setp.ne.u32 wanted, %2, 0; @wanted cp.async.cg.shared.global [%0], [%1], 16;}" ::"r"(address),
                 "l"(from), "r"(static_cast<uint32_t>(wanted))
                 : "memory");
  }
  __device__ void Commit() const { asm volatile("cp.async.commit_group;" ::: "memory"); }
  template <size_t kMost>
  __device__ void Wait() const {
    asm volatile("cp.async.wait_group %0;" ::"n"(kMost) : "memory");
  }
};
#endif

}  // namespace llmi::cuda

// Integer dots of a packed block by VPDPBUSD, over registers of any width: codes are the unsigned operand, activations the signed
// one, and the offset enters as the accumulator's start, -offset x (sum of the activation codes). Exact. Low bytes have
// separate sums, which begin with the offset; the sums of high bytes begin with zero and count 256 times. What a table has for a code is
// made unsigned by adding 128, its offset.
#pragma once

#include "kernels/cpu/simd/activation_block-inl.h"

namespace llmi::LLMI_ISA_NAMESPACE {
namespace {

constexpr int32_t DotOffset(PackedType type) { return IsTablePacked(type) ? 128 : PackedOffset(type); }

// Adds the dot of kGroups groups of four columns to `total`.
template <typename Vnni, int kGroups, typename Register>
inline Register AddDots(const Register* w, const int8_t* codes, Register total) {
  for (int i = 0; i < kGroups; ++i) {
    int32_t four;
    __builtin_memcpy(&four, codes + 4 * i, 4);
    total = Vnni::Dot(total, w[i], Vnni::Broadcast(four));
  }
  return total;
}

// w: the block's eight groups of four columns. Vnni has Broadcast and Dot for its registers. store(index in dots, total).
template <typename Vnni, PackedType T, int MR, int kDots, bool kLow, typename Register, typename Store>
inline void VnniDots(const Register* w, const ActivationBlock<MR>& x, const Store& store) {
  constexpr int32_t kOffset = DotOffset(T);
  constexpr int kGroups = 8 / kDots;
  for (int m = 0; m < MR; ++m) {
    const int32_t* half_sums = x.HalfSums(m);
    for (int dot = 0; dot < kDots; ++dot) {
      const int first = dot * kGroups;
      const int32_t sum = kDots == 2 ? half_sums[dot] : half_sums[0] + half_sums[1];
      Register total = Vnni::Broadcast(-kOffset * sum);
      if constexpr (kLow) {
        total = AddDots<Vnni, kGroups>(w + first, x.LowCodes(m) + 4 * first, total);
        total = Vnni::Add256(total, AddDots<Vnni, kGroups>(w + first, x.Codes(m) + 4 * first, Vnni::Broadcast(0)));
      } else {
        total = AddDots<Vnni, kGroups>(w + first, x.Codes(m) + 4 * first, total);
      }
      store(m * kDots + dot, total);
    }
  }
}

}  // namespace
}  // namespace llmi::LLMI_ISA_NAMESPACE

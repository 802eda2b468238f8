// Integer dots of a packed block by VPDPBUSD, over registers of any width: codes are the unsigned operand, activations the signed
// one, and the offset enters as the accumulator's start, -offset x (sum of the activation codes). Exact.
#pragma once

#include "kernels/cpu/simd/block_of_rows.h"

namespace llmi::LLMI_ISA_NAMESPACE {
namespace {

// w: the block's eight groups of four columns. Vnni has Broadcast and Dot for its registers. store(index in dots, total).
template <typename Vnni, PackedType T, int MR, int kDots, typename Register, typename Store>
inline void VnniDots(const Register* w, const BlockOfRows<MR>& x, const Store& store) {
  constexpr int32_t kOffset = PackedOffset(T);
  for (int m = 0; m < MR; ++m) {
    const int8_t* a = x.Codes(m);
    const int32_t* half_sums = x.HalfSums(m);
    for (int dot = 0; dot < kDots; ++dot) {
      const int32_t sum = kDots == 2 ? half_sums[dot] : half_sums[0] + half_sums[1];
      Register total = Vnni::Broadcast(-kOffset * sum);
      for (int i = dot * (8 / kDots); i < (dot + 1) * (8 / kDots); ++i) {
        int32_t four;
        __builtin_memcpy(&four, a + 4 * i, 4);
        total = Vnni::Dot(total, w[i], Vnni::Broadcast(four));
      }
      store(m * kDots + dot, total);
    }
  }
}

}  // namespace
}  // namespace llmi::LLMI_ISA_NAMESPACE

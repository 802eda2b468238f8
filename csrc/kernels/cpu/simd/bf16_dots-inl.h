// Dots of bf16 pairs over 16 lanes: one instruction, or what it does by two fma with subnormals flushed.
// Definition: core/bfloat16.h.
#pragma once

#include <stdint.h>

namespace llmi::LLMI_ISA_NAMESPACE {
namespace {

// The pair at p in all lanes; 16 pairs from p on.
inline F32x16 Set1Pair(const uint16_t* p) {
  float pair;
  __builtin_memcpy(&pair, p, sizeof pair);
  return Set1(pair);
}
inline F32x16 LoadPairs(const uint16_t* p) { return Load(reinterpret_cast<const float*>(p)); }

#ifdef __AVX512BF16__
inline F32x16 DotPairs(F32x16 a, F32x16 b, F32x16 sum) {
  return {_mm512_dpbf16_ps(sum.v, reinterpret_cast<__m512bh>(a.v), reinterpret_cast<__m512bh>(b.v))};
}
#else
inline F32x16 DotPairs(F32x16 a, F32x16 b, F32x16 sum) { return Fma(WidenEven(a), WidenEven(b), Fma(WidenOdd(a), WidenOdd(b), sum)); }
#endif

// While one lives, DotPairs by fma flushes. The compiler may move arithmetic past its making: call a function that is never inlined.
template <bool kNeeded>
struct FlushSubnormals {};
#ifndef __AVX512BF16__
template <>
class FlushSubnormals<true> {
 public:
  FlushSubnormals() : saved_(_mm_getcsr()) { _mm_setcsr(saved_ | 0x8040u); }
  ~FlushSubnormals() { _mm_setcsr(saved_); }
  FlushSubnormals(const FlushSubnormals&) = delete;
  FlushSubnormals& operator=(const FlushSubnormals&) = delete;

 private:
  unsigned int saved_;
};
#endif

}  // namespace
}  // namespace llmi::LLMI_ISA_NAMESPACE

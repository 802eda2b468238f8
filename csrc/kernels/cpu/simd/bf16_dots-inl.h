// Dots of bf16 pairs over 16 lanes: by one instruction, or by two fma with subnormals flushed, which give the same bits.
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

// While an object of it lives, DotPairs by fma flushes subnormals. The compiler may move arithmetic past its constructor, so the
// arithmetic must be in a function that is never inlined.
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

// Every entry into the core computes in the same floating-point environment: round to nearest, keep subnormals. The caller or a library may
// have set another one, such as flush-to-zero; the guard restores it at the end.
#pragma once

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif
#include <cfenv>

namespace llmi {

class FloatEnvironmentGuard {
 public:
#if defined(__x86_64__)
  FloatEnvironmentGuard() : saved_(_mm_getcsr()) { _mm_setcsr(0x1F80u); }  // all exceptions masked, nearest, no FTZ/DAZ
  ~FloatEnvironmentGuard() { _mm_setcsr(saved_); }

 private:
  unsigned int saved_;
#else
  FloatEnvironmentGuard() {
    std::fegetenv(&saved_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~FloatEnvironmentGuard() { std::fesetenv(&saved_); }

 private:
  std::fenv_t saved_;
#endif
 public:
  FloatEnvironmentGuard(const FloatEnvironmentGuard&) = delete;
  FloatEnvironmentGuard& operator=(const FloatEnvironmentGuard&) = delete;
};

}  // namespace llmi

// The floating-point environment of every entry: round to nearest, subnormals kept. A caller (or a library
// in its process) may have set flush-to-zero; the guard puts that back when it leaves.
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

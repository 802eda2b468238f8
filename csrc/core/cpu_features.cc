#include "core/cpu_features.h"

#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace llmi {
namespace {

#if defined(__x86_64__)
uint64_t ReadXcr0() {
  uint32_t low = 0;
  uint32_t high = 0;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (uint64_t{high} << 32) | low;
}

bool Bit(uint32_t word, int index) { return ((word >> index) & 1u) != 0; }

CpuFeatures Detect() {
  CpuFeatures features;
  uint32_t a = 0, b = 0, c = 0, d = 0;
  char brand[49] = {};
  for (uint32_t leaf = 0; leaf < 3; ++leaf) {
    if (__get_cpuid(0x80000002u + leaf, &a, &b, &c, &d) == 0) break;
    const uint32_t words[4] = {a, b, c, d};
    std::memcpy(brand + leaf * 16, words, 16);
  }
  features.brand = brand;
  if (__get_cpuid(1, &a, &b, &c, &d) == 0 || !Bit(c, 27)) return features;  // OSXSAVE
  const bool fma = Bit(c, 12);
  const bool f16c = Bit(c, 29);
  const uint64_t xcr0 = ReadXcr0();
  const bool os_avx = (xcr0 & 0x6u) == 0x6u;
  const bool os_avx512 = (xcr0 & 0xE6u) == 0xE6u;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return features;
  features.avx2 = os_avx && fma && f16c && Bit(b, 5);
  const bool f = Bit(b, 16), dq = Bit(b, 17), bw = Bit(b, 30), vl = Bit(b, 31), vnni = Bit(c, 11);
  features.avx512 = features.avx2 && os_avx512 && f && dq && bw && vl && vnni;
  if (__get_cpuid_count(7, 1, &a, &b, &c, &d) != 0) {
    features.avx_vnni = features.avx2 && Bit(a, 4);
    features.avx512_bf16 = features.avx512 && Bit(a, 5);
  }
  return features;
}
#else
CpuFeatures Detect() { return CpuFeatures{}; }
#endif

}  // namespace

const CpuFeatures& GetCpuFeatures() {
  static const CpuFeatures features = Detect();
  return features;
}

}  // namespace llmi

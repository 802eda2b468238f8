// The instruction sets that the processor has and the operating system allows.
#pragma once

#include <string>

namespace llmi {

struct CpuFeatures {
  bool avx2 = false;    // AVX2 + FMA + F16C, registers saved by the OS
  bool avx512 = false;  // F, BW, VL, DQ and VNNI
  bool avx_vnni = false;
  bool avx512_bf16 = false;
  std::string brand;
};

const CpuFeatures& GetCpuFeatures();

}  // namespace llmi

// The widest lanes of the processor that this is compiled for (LLMI_PROMISE_ARCH), as the engine's table of that name has them.
#pragma once

#if defined(__AVX512VNNI__)
#define LLMI_FREE_ISA avx512
#include "kernels/cpu/avx512/lanes-inl.h"
#else
#define LLMI_FREE_ISA avx2
#include "kernels/cpu/avx2/lanes-inl.h"
#endif

#include "core/half.h"
#include "kernels/dispatch/kernel_table.h"
#include "kernels/cpu/simd/lane_math-inl.h"

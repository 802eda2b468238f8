// The kernels of the avx512_bf16 table that use the instruction for dots of bf16 pairs: attention and linear layers. Its other kernels
// are avx512's.
#define LLMI_ISA_NAMESPACE avx512_bf16
#define LLMI_ONLY_BF16_CACHE  // attention over other types is avx512's
#include "kernels/cpu/avx512/lanes-inl.h"

#include "core/half.h"
#include "kernels/dispatch/kernel_table.h"
#include "kernels/cpu/simd/lane_math-inl.h"
#include "kernels/cpu/simd/attention-inl.h"
#include "kernels/cpu/simd/linear_bf16-inl.h"
#include "kernels/cpu/simd/probe_bf16-inl.h"

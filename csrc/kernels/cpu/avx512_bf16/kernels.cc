// Attention of the avx512_bf16 table, whose other kernels are avx512's: bf16 pairs by their own instruction.
#define LLMI_ISA_NAMESPACE avx512_bf16
#include "kernels/cpu/avx512/lanes.h"

#include "core/half.h"
#include "kernels/kernel_table.h"
#include "kernels/cpu/simd/lane_math.h"
#include "kernels/cpu/simd/attention.h"

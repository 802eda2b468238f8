// Quantised linear layers of the avx_vnni table, whose other kernels are avx2's: int8 dots by one instruction, for which avx2 needs three.
#define LLMI_ISA_NAMESPACE avx_vnni
#include "kernels/cpu/avx2/lanes-inl.h"

#include "core/half.h"
#include "kernels/dispatch/kernel_table.h"
#include "kernels/cpu/simd/lane_math-inl.h"
#include "kernels/cpu/avx_vnni/block_dots-inl.h"
#include "kernels/cpu/simd/linear-inl.h"
#include "kernels/cpu/simd/probe-inl.h"

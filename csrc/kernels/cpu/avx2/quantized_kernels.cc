// The quantised linear layers of the avx2 table, which take as long to compile as its other kernels.
#include "kernels/cpu/avx2/lanes-inl.h"

#include "core/half.h"
#include "kernels/dispatch/kernel_table.h"
#include "kernels/cpu/simd/lane_math-inl.h"
#include "kernels/cpu/avx2/block_dots-inl.h"
#include "kernels/cpu/simd/linear-inl.h"
#include "kernels/cpu/simd/probe-inl.h"

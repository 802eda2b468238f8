// The avx2 table: AVX2, FMA and F16C.
#include "kernels/cpu/avx2/lanes-inl.h"

#include "core/half.h"
#include "kernels/dispatch/kernel_table.h"
#include "kernels/cpu/simd/lane_math-inl.h"
#include "kernels/cpu/simd/elementwise-inl.h"
#include "kernels/cpu/simd/quantize_rows-inl.h"
#include "kernels/cpu/simd/vocab-inl.h"
#include "kernels/cpu/simd/linear_float-inl.h"
#include "kernels/cpu/simd/linear_bf16-inl.h"
#include "kernels/cpu/simd/probe_bf16-inl.h"
#include "kernels/cpu/simd/attention-inl.h"
#include "kernels/cpu/simd/kv_write-inl.h"

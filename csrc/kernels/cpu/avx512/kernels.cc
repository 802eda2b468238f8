// The avx512 table: AVX-512 F, BW, VL, DQ and VNNI.
#include "kernels/cpu/avx512/lanes-inl.h"

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

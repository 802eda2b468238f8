// The avx2 table: AVX2, FMA and F16C.
#include "kernels/cpu/avx2/lanes.h"

#include "core/half.h"
#include "kernels/kernel_table.h"
#include "kernels/cpu/simd/lane_math.h"
#include "kernels/cpu/simd/elementwise.h"
#include "kernels/cpu/simd/vocab.h"
#include "kernels/cpu/avx2/block_dots.h"
#include "kernels/cpu/simd/linear.h"
#include "kernels/cpu/simd/linear_bf16.h"
#include "kernels/cpu/simd/probe.h"
#include "kernels/cpu/simd/attention.h"
#include "kernels/cpu/simd/kv_write.h"

// The avx512 table: AVX-512 F, BW, VL, DQ and VNNI.
#include "kernels/cpu/avx512/lanes.h"

#include "core/half.h"
#include "kernels/kernel_table.h"
#include "kernels/cpu/simd/lane_math.h"
#include "kernels/cpu/simd/elementwise.h"
#include "kernels/cpu/simd/vocab.h"
#include "kernels/cpu/avx512/block_dots.h"
#include "kernels/cpu/simd/linear.h"
#include "kernels/cpu/simd/linear_bf16.h"
#include "kernels/cpu/simd/probe.h"
#include "kernels/cpu/simd/attention.h"
#include "kernels/cpu/simd/kv_write.h"

// LLMI_HD marks functions that run on the host and, compiled by nvcc, also on a GPU: the scalar definitions that both share.
#pragma once

// LLMI_UNROLL is for a loop whose index selects registers. LLMI_ROLL is for a loop that would need too many registers if it were unrolled.
#ifdef __CUDACC__
#define LLMI_HD __host__ __device__
#define LLMI_UNROLL _Pragma("unroll")
#define LLMI_ROLL _Pragma("unroll 1")
#else
#define LLMI_HD
#define LLMI_UNROLL
#define LLMI_ROLL
#endif

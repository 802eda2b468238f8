// LLMI_HD marks what runs on the host and, compiled by nvcc, on a GPU too: the scalar definitions that both share.
#pragma once

// LLMI_UNROLL: before a loop whose index picks registers; LLMI_ROLL: before one whose copies would take too many.
#ifdef __CUDACC__
#define LLMI_HD __host__ __device__
#define LLMI_UNROLL _Pragma("unroll")
#define LLMI_ROLL _Pragma("unroll 1")
#else
#define LLMI_HD
#define LLMI_UNROLL
#define LLMI_ROLL
#endif

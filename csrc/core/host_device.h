// LLMI_HD marks what runs on the host and, compiled by nvcc, on a GPU too: the scalar definitions that both share.
#pragma once

#ifdef __CUDACC__
#define LLMI_HD __host__ __device__
#else
#define LLMI_HD
#endif

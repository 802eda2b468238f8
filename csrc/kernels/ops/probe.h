// Measures this machine's ceilings: the highest rates of its arithmetic and its memory, with which reports compare the engine's rates.
#pragma once

#include <stdint.h>

#include <vector>

#include "core/aligned.h"
#include "kernels/ops/context.h"
#include "kernels/ops/quantize_rows.h"

namespace llmi {

// probe_fma: kProbeChains independent chains of 16 lanes, v = fma(v, 0.5, 1), `iterations` times from 16 chain + lane;
// out[16] = their sum in order. Each lane begins with another value; else the compiler could compute equal registers once.
constexpr int64_t kProbeChains = 12;
constexpr int64_t kProbeFmaOps = kProbeChains * 16 * 2;  // operations of one iteration

// probe_bf16: the same chains, v = DotPair(v, pair, pair) of kProbePair (core/bfloat16.h).
constexpr uint16_t kProbePair[2] = {0x3F80, 0x3F00};      // 1, 0.5
constexpr int64_t kProbeBf16Ops = kProbeChains * 16 * 4;  // operations of one iteration

// probe_dots: the exact dots of one packed Q4 block (16 rows x 32 codes) with 8 rows of x, in iteration i those from row 8 i mod 64 on,
// added up over all iterations: out[8 x 16]. x has 64 rows of one block; its scales are not used.
constexpr int64_t kProbeRows = 64;
constexpr int64_t kProbeDotRows = 8;
constexpr int64_t kProbeDotOps = kProbeDotRows * 16 * 32 * 2;  // operations of one iteration

struct Ceilings {
  double read_bytes_per_s = 0;
  double fma_ops_per_s = 0;   // fp32
  double bf16_ops_per_s = 0;  // dots of bf16 pairs, by the table's instructions for them
  double dots_ops_per_s = 0;  // int8 dots, by the instructions that 4-bit weights use
};

// Measures the current read bandwidth: on some machines it jumps from second to second between one value and another half as large.
class ReadProbe {
 public:
  // num_bytes: size of the buffer that is read; larger than the caches.
  ReadProbe(const KernelContext& context, int64_t num_bytes);
  // The rate of one pass, in which each thread reads its share.
  double BytesPerSecond();

 private:
  const uint64_t* Share(int64_t task) const { return reinterpret_cast<const uint64_t*>(buffer_.data() + task * share_); }

  KernelContext context_;
  AlignedBuffer buffer_;
  int64_t share_;               // bytes
  std::vector<uint64_t> sums_;  // one sum for each task, a cache line apart
};

// Runs context.num_threads threads, for about half a second. num_bytes: size of the buffer that is read; larger than the caches.
Ceilings MeasureCeilings(const KernelContext& context, int64_t num_bytes);

}  // namespace llmi

// Ceilings of this machine: what its arithmetic and its memory can do at most, for shares in reports.
#pragma once

#include <stdint.h>

#include <vector>

#include "core/aligned.h"
#include "kernels/ops/context.h"
#include "kernels/ops/quantize_rows.h"

namespace llmi {

// probe_fma: kProbeChains independent chains of 16 lanes, v = fma(v, 0.5, 1), `iterations` times from 16 chain + lane;
// out[16] = their sum in order. Lanes that began alike would be computed once for both halves of a pair of registers.
constexpr int64_t kProbeChains = 12;
constexpr int64_t kProbeFmaOps = kProbeChains * 16 * 2;  // an iteration

// probe_bf16: the same chains, v = DotPair(v, pair, pair) of kProbePair (core/bfloat16.h).
constexpr uint16_t kProbePair[2] = {0x3F80, 0x3F00};      // 1, 0.5
constexpr int64_t kProbeBf16Ops = kProbeChains * 16 * 4;  // an iteration

// probe_dots: the exact dots of one packed Q4 block (16 rows x 32 codes) with 8 rows of x a time, rows 8 i mod 64 on, added up
// over iterations: out[8 x 16]. x has 64 rows of one block; its scales are not used.
constexpr int64_t kProbeRows = 64;
constexpr int64_t kProbeDotRows = 8;
constexpr int64_t kProbeDotOps = kProbeDotRows * 16 * 32 * 2;  // an iteration

struct Ceilings {
  double read_bytes_per_s = 0;
  double fma_ops_per_s = 0;   // fp32
  double bf16_ops_per_s = 0;  // dots of bf16 pairs, by what the table has for them
  double dots_ops_per_s = 0;  // int8, by the sequence that 4-bit weights use
};

// What memory gives now: some machines' flips between one value and another half as large from second to second.
class ReadProbe {
 public:
  // num_bytes: what is read, out of the caches' reach.
  ReadProbe(const KernelContext& context, int64_t num_bytes);
  // Of one pass by all threads, each over its share.
  double BytesPerSecond();

 private:
  const uint64_t* Share(int64_t task) const { return reinterpret_cast<const uint64_t*>(buffer_.data() + task * share_); }

  KernelContext context_;
  AlignedBuffer buffer_;
  int64_t share_;               // bytes
  std::vector<uint64_t> sums_;  // a cache line apart
};

// With context.num_threads threads; takes about half a second. num_bytes: what is read, out of the caches' reach.
Ceilings MeasureCeilings(const KernelContext& context, int64_t num_bytes);

}  // namespace llmi

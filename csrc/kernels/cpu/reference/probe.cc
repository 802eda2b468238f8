#include "kernels/ops/probe.h"

#include "core/bfloat16.h"
#include "core/scalar_math.h"
#include "kernels/cpu/reference/packed_block.h"
#include "kernels/dispatch/kernel_table.h"

namespace llmi::reference {
namespace {

// The sum of the chains in order; step maps a chain's value to its next.
template <typename Step>
void RunProbeChains(int64_t iterations, const Step& step, float* out) {
  for (int64_t lane = 0; lane < 16; ++lane) {
    float total = 0.0f;
    for (int64_t chain = 0; chain < kProbeChains; ++chain) {
      auto value = static_cast<float>(16 * chain + lane);
      for (int64_t i = 0; i < iterations; ++i) value = step(value);
      total = total + value;
    }
    out[lane] = total;
  }
}

}  // namespace

void probe_fma(int64_t iterations, float* out) {
  RunProbeChains(iterations, [](float v) { return Fma(v, 0.5f, 1.0f); }, out);
}

void probe_bf16(int64_t iterations, float* out) {
  const float even = Bfloat16ToFloat(kProbePair[0]);
  const float odd = Bfloat16ToFloat(kProbePair[1]);
  RunProbeChains(iterations, [&](float v) { return DotPair(v, even, even, odd, odd); }, out);
}

void probe_dots(int64_t iterations, const uint8_t* block, const QuantizedRows& x, float* out) {
  for (int64_t i = 0; i < kProbeDotRows * 16; ++i) out[i] = 0.0f;
  for (int64_t i = 0; i < iterations; ++i) {
    for (int64_t m = 0; m < kProbeDotRows; ++m) {
      const int64_t row = i * kProbeDotRows % kProbeRows + m;
      for (int64_t lane = 0; lane < 16; ++lane) {
        const PackedRow w = {PackedType::kQ4, block, lane};
        int32_t dot = 0;
        for (int64_t k = 0; k < kBlockSize; ++k) dot += w.Level(0, k) * x.codes[row * kBlockSize + k];
        out[m * 16 + lane] = out[m * 16 + lane] + static_cast<float>(dot);
      }
    }
  }
}

}  // namespace llmi::reference

#include "kernels/vocab.h"

#include "core/scalar_math.h"
#include "kernels/cpu/reference/lanes.h"
#include "kernels/kernel_table.h"

namespace llmi::reference {

// One chunk of log_sum_exp: maximum and sum of exp(x - maximum); sum is 0 where all are -inf, NaN if any is.
void softmax_chunk(const float* logits, int64_t size, float* maximum, float* sum) {
  float peak = -__builtin_inff();
  for (int64_t i = 0; i < size; ++i) peak = Max(logits[i], peak);
  float lanes[16] = {};
  if (peak > -__builtin_inff()) {
    for (int64_t i = 0; i < size; ++i) lanes[i % 16] = lanes[i % 16] + ExpF32(logits[i] - peak);
  } else {
    for (int64_t i = 0; i < size; ++i) lanes[i % 16] = lanes[i % 16] + (logits[i] == peak ? 0.0f : logits[i]);
  }
  *maximum = peak;
  *sum = FoldSum(lanes);
}

void token_masses(const float* logits, int64_t size, float maximum, uint64_t* masses) {
  for (int64_t i = 0; i < size; ++i) {
    const float scaled = ExpF32(logits[i] - maximum) * 0x1p40f;
    // Exact from 2^23 on; below, rounded to nearest even by the fp32 adder.
    masses[i] = static_cast<uint64_t>(scaled < 0x1p23f ? (scaled + 0x1p23f) - 0x1p23f : scaled);
  }
}

}  // namespace llmi::reference

// Reductions over one row of logits [vocab_size] fp32, the primitives of sampling and scoring.
//
// log_sum_exp  chunks of 4,096 ids: m = max, s = sum of exp(x - m) in 16 lanes folded 8, 4, 2, 1; chunks
//              merge in order; result m + log(s). NaN anywhere gives NaN; all -inf gives -inf.
// argmax       the largest value, lowest id among equals; -1 if the row holds a NaN or +inf, or only -inf.
// soft_cap     x = cap * tanh(x / cap), computed as in SoftCapF32.
// token_masses mass[i] = round(exp(x[i] - maximum) * 2^40) as uint64: integers, so that they give the same top-p
//              set in whatever order they are added.
// mass_moments the total of the masses, and the sum of mass x (x[i] - maximum) in fp64 over 16 lanes, lane = i mod 16, each in the order of
// i,
//              folded 8, 4, 2, 1. A value of -inf has no mass and adds nothing.
// divergence   of two laws p and q, given as log-softmaxes a and b; m is their mean, in fp32 (p + q) / 2, and at least 2^-126 in log m.
//              Jensen-Shannon: half the sum of p (a - log m) + q (b - log m). of_mean: KL(m, p) + KL(m, q), the sum of
//              m ((log m - a) + (log m - b)), halved too. Chunks of 4,096 ids in 16 lanes folded 8, 4, 2, 1; the chunks' sums are added
//              in order, in fp64, and the result is rounded to fp32. NaN anywhere, or -inf in a or b, may give NaN.
#pragma once

#include <stdint.h>

#include "core/scalar_math.h"
#include "kernels/ops/context.h"

namespace llmi {

constexpr int64_t kVocabChunk = 4096;

LLMI_HD static inline uint64_t TokenMass(float logit, float maximum) {
  const float scaled = ExpF32(logit - maximum) * 0x1p40f;
  // Values from 2^23 on are integers; smaller ones are rounded to nearest even by the fp32 addition.
  return static_cast<uint64_t>(scaled < 0x1p23f ? (scaled + 0x1p23f) - 0x1p23f : scaled);
}

// The maximum and the sum of a row's chunks so far, merged in order.
struct LogSum {
  float maximum = -__builtin_inff();
  float sum = 0.0f;

  LLMI_HD void Merge(float chunk_maximum, float chunk_sum) {
    const float merged = maximum > chunk_maximum ? maximum : chunk_maximum;
    if (merged == -__builtin_inff()) {  // no finite value so far: the sums are 0, or NaN, which must stay
      sum += chunk_sum;
      return;
    }
    sum = Fma(chunk_sum, ExpF32(chunk_maximum - merged), sum * ExpF32(maximum - merged));
    maximum = merged;
  }
  LLMI_HD float Log() const {
    if (sum != sum) return sum;
    if (sum == 0.0f) return -__builtin_inff();
    return static_cast<float>(static_cast<double>(maximum) + LogF64(static_cast<double>(sum)));
  }
};

struct MassMoments {
  uint64_t total;
  double product;  // the sum of mass x (x[i] - maximum)
};

void SoftCap(const KernelContext& context, float* x, int64_t count, float cap);
float LogSumExp(const KernelContext& context, const float* logits, int64_t vocab_size);
float LayerDivergence(const KernelContext& context, const float* a, const float* b, int64_t vocab_size, bool of_mean);
int64_t ArgMax(const KernelContext& context, const float* logits, int64_t vocab_size);
void TokenMasses(const KernelContext& context, const float* logits, int64_t vocab_size, float maximum, uint64_t* masses);
MassMoments MomentsOfMasses(const KernelContext& context, const float* logits, int64_t vocab_size, float maximum);

}  // namespace llmi

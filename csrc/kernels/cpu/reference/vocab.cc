#include "kernels/ops/vocab.h"

#include "core/scalar_math.h"
#include "kernels/cpu/reference/lanes.h"
#include "kernels/dispatch/kernel_table.h"

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

// The largest value, and whether all values are below +infinity (a NaN is not).
void max_chunk(const float* x, int64_t size, float* maximum, bool* all_below_infinity) {
  float peak = -__builtin_inff();
  bool all_below = true;
  for (int64_t i = 0; i < size; ++i) {
    peak = Max(x[i], peak);
    all_below = all_below && x[i] < __builtin_inff();
  }
  *maximum = peak;
  *all_below_infinity = all_below;
}

void race_candidates(const RaceArgs& race, int32_t* ids, int64_t* count) {
  int64_t found = 0;
  for (int64_t begin = race.first_id; begin < race.first_id + race.size; begin += 4) {
    const PhiloxWords words = RaceWords(race.noise, begin / 4);
    for (int64_t id = begin; id < begin + 4 && id < race.first_id + race.size; ++id) {
      if (MayWinRace(words[id % 4], race.limit, race.law[id])) ids[found++] = static_cast<int32_t>(id);
    }
  }
  *count = found;
}

void token_masses(const float* logits, int64_t size, float maximum, uint64_t* masses) {
  for (int64_t i = 0; i < size; ++i) masses[i] = TokenMass(logits[i], maximum);
}

// One chunk of MomentsOfMasses: adds to the lanes. size: at most kVocabChunk, so that the masses' sums are exact.
void mass_moments(const float* logits, int64_t size, float maximum, double* masses, double* products) {
  constexpr float kLowest = -0x1.fffffep127f;
  for (int64_t i = 0; i < size; ++i) {
    const auto mass = static_cast<double>(TokenMass(logits[i], maximum));
    masses[i % 16] += mass;
    products[i % 16] += mass * (static_cast<double>(Max(logits[i], kLowest)) - static_cast<double>(maximum));
  }
}

// One chunk of LayerDivergence.
void divergence_chunk(const float* a, const float* b, int64_t size, bool of_mean, float* sum) {
  float lanes[16] = {};
  for (int64_t i = 0; i < size; ++i) {
    const float p = ExpF32(a[i]);
    const float q = ExpF32(b[i]);
    const float mean = (p + q) * 0.5f;
    const float log_mean = LogF32(Max(mean, kLeastNormal));
    const float of_a = of_mean ? log_mean - a[i] : a[i] - log_mean;
    const float of_b = of_mean ? log_mean - b[i] : b[i] - log_mean;
    lanes[i % 16] = lanes[i % 16] + (of_mean ? mean * (of_a + of_b) : Fma(q, of_b, p * of_a));
  }
  *sum = FoldSum(lanes);
}

// The indices of the values that are not below `least`, ascending.
void ids_from(const float* x, int64_t size, float least, int32_t* ids, int64_t* count) {
  int64_t found = 0;
  for (int64_t i = 0; i < size; ++i) {
    if (!(x[i] < least)) ids[found++] = static_cast<int32_t>(i);
  }
  *count = found;
}

}  // namespace llmi::reference

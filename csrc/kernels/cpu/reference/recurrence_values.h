// The scalar definition of a recurrence: the factors of a head, a column.
#pragma once

#include "core/scalar_math.h"
#include "kernels/cpu/reference/lanes.h"
#include "kernels/ops/recurrence.h"

namespace llmi::reference {
namespace {

LLMI_HD inline float SoftplusF32(float x) {
  const float e = ExpF32(x < 0.0f ? x : 0.0f - x);
  const float u = 1.0f + e;
  return (x < 0.0f ? 0.0f : x) + (LogF32(u) + (e - (u - 1.0f)) / u);
}

// 1 / sqrt(sum of the squares + 1e-6).
LLMI_HD inline float InverseLength(const float* x, int64_t size) {
  float lanes[16] = {};
  for (int64_t begin = 0; begin < size; begin += 16) {
    LLMI_UNROLL
    for (int i = 0; i < 16; ++i) {
      if (begin + i < size) lanes[i] = Fma(x[begin + i], x[begin + i], lanes[i]);
    }
  }
  return 1.0f / SqrtF32(FoldSum(lanes) + 1e-6f);
}

// The factors of one head of a row.
LLMI_HD inline void FindFactors(const RecurrenceArgs& args, int64_t row, int64_t head) {
  const RecurrenceShape& shape = args.shape;
  float* input = args.inputs + row * args.input_stride;
  float step = SoftplusF32(args.time[row * args.time_stride + head] + args.time_bias[head]);
  step = step < args.least_step ? args.least_step : step;
  step = args.most_step < step ? args.most_step : step;
  const float decay = ExpF32(step * args.decay[head]);
  input[shape.factor(kDecayFactor) + head] = decay;
  if (!shape.is_delta) {
    input[shape.factor(kWriteFactor) + head] = step;
    input[shape.factor(kMemoryFactor) + head] = input[shape.factor(kReadFactor) + head] = 0.0f;
    return;
  }
  const int64_t offset = shape.group(head) * shape.key_size;
  const float key = InverseLength(input + shape.key() + offset, shape.key_size);
  const float query = InverseLength(input + shape.query() + offset, shape.key_size);
  input[shape.factor(kMemoryFactor) + head] = decay * key;
  input[shape.factor(kWriteFactor) + head] = SigmoidF32(args.write[row * args.time_stride + head]) * key;
  input[shape.factor(kReadFactor) + head] = query / SqrtF32(static_cast<float>(shape.key_size));
}

// Sums of n modulo 4, folded. term(n, sum): the sum with what n adds.
template <typename Term>
LLMI_HD inline float SumOfFour(int64_t size, const Term& term) {
  float sums[4] = {};
  for (int64_t begin = 0; begin < size; begin += 4) {
    LLMI_UNROLL
    for (int i = 0; i < 4; ++i) {
      if (begin + i < size) sums[i] = term(begin + i, sums[i]);
    }
  }
  return (sums[0] + sums[2]) + (sums[1] + sums[3]);
}

// One column of a head, whose values are `apart` from each other.
LLMI_HD inline void StepColumn(const RecurrenceArgs& args, int64_t head, int64_t column, float* state, int64_t apart, const float* input,
                               float* out) {
  const RecurrenceShape& shape = args.shape;
  const float* key = input + shape.key() + shape.group(head) * shape.key_size;
  const float* query = input + shape.query() + shape.group(head) * shape.key_size;
  const float value = input[shape.value() + head * shape.value_size + column];
  const float decay = input[shape.factor(kDecayFactor) + head];
  float written = value;
  if (shape.is_delta) {
    const float memory = SumOfFour(shape.key_size, [&](int64_t n, float sum) { return Fma(state[n * apart], key[n], sum); });
    written = written - input[shape.factor(kMemoryFactor) + head] * memory;
  }
  written = written * input[shape.factor(kWriteFactor) + head];
  float read = SumOfFour(shape.key_size, [&](int64_t n, float sum) {
    float& place = state[n * apart];
    place = Fma(key[n], written, decay * place);
    return Fma(place, query[n], sum);
  });
  if (out == nullptr) return;
  if (shape.is_delta) read = read * input[shape.factor(kReadFactor) + head];
  out[head * shape.value_size + column] = args.skip != nullptr ? Fma(args.skip[head], value, read) : read;
}

}  // namespace
}  // namespace llmi::reference

// The scalar definition of a recurrence: the factors of a head, a column.
#pragma once

#include "core/scalar_math.h"
#include "kernels/cpu/reference/lanes.h"
#include "kernels/ops/recurrence.h"

namespace llmi::reference {
namespace {

inline float SoftplusF32(float x) {
  const float e = ExpF32(x < 0.0f ? x : 0.0f - x);
  const float u = 1.0f + e;
  return (x < 0.0f ? 0.0f : x) + (LogF32(u) + (e - (u - 1.0f)) / u);
}

// 1 / sqrt(sum of the squares + 1e-6).
inline float InverseLength(const float* x, int64_t size) {
  float lanes[16] = {};
  for (int64_t i = 0; i < size; ++i) lanes[i % 16] = Fma(x[i], x[i], lanes[i % 16]);
  return 1.0f / SqrtF32(FoldSum(lanes) + 1e-6f);
}

// The factors of one head of a row.
inline void FindFactors(const RecurrenceArgs& args, int64_t row, int64_t head) {
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

inline float FoldFour(const float* sums) { return (sums[0] + sums[2]) + (sums[1] + sums[3]); }

// One column of a head, whose values are kStateColumns apart in the state.
inline void StepColumn(const RecurrenceArgs& args, int64_t head, int64_t column, float* state, const float* input, float* out) {
  const RecurrenceShape& shape = args.shape;
  const float* key = input + shape.key() + shape.group(head) * shape.key_size;
  const float* query = input + shape.query() + shape.group(head) * shape.key_size;
  const float value = input[shape.value() + head * shape.value_size + column];
  const float decay = input[shape.factor(kDecayFactor) + head];
  float written = value;
  if (shape.is_delta) {
    float sums[4] = {};
    for (int64_t n = 0; n < shape.key_size; ++n) sums[n % 4] = Fma(state[n * kStateColumns], key[n], sums[n % 4]);
    written = written - input[shape.factor(kMemoryFactor) + head] * FoldFour(sums);
  }
  written = written * input[shape.factor(kWriteFactor) + head];
  float sums[4] = {};
  for (int64_t n = 0; n < shape.key_size; ++n) {
    float& place = state[n * kStateColumns];
    place = Fma(key[n], written, decay * place);
    sums[n % 4] = Fma(place, query[n], sums[n % 4]);
  }
  if (out == nullptr) return;
  float read = FoldFour(sums);
  if (shape.is_delta) read = read * input[shape.factor(kReadFactor) + head];
  out[head * shape.value_size + column] = args.skip != nullptr ? Fma(args.skip[head], value, read) : read;
}

}  // namespace
}  // namespace llmi::reference

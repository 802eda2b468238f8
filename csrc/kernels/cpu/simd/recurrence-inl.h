// recurrence over 16 lanes, each of which is a head or a column. Contract: kernels/ops/recurrence.h; definition:
// kernels/cpu/reference/recurrence_values.h.
#pragma once

namespace llmi::LLMI_ISA_NAMESPACE {

namespace {

inline void StoreFirst(float* p, int64_t count, F32x16 a) {
  if (count >= 16) return Store(p, a);
  float values[16];
  Store(values, a);
  for (int64_t i = 0; i < count; ++i) p[i] = values[i];
}

inline F32x16 Softplus(F32x16 x) {
  const F32x16 e = Exp(SelectLess(x, Zero(), x, Sub(Zero(), x)));
  const F32x16 u = Add(Set1(1.0f), e);
  const F32x16 lost = Div(Sub(e, Sub(u, Set1(1.0f))), u);
  return Add(SelectLess(x, Zero(), Zero(), x), Add(Log(u), lost));
}

inline float InverseLength(const float* x, int64_t size) { return 1.0f / __builtin_sqrtf(SumOfSquares<false>(x, size, Zero()) + 1e-6f); }

// Sums of n modulo 4, folded. term(n, sum): the sum with what n adds.
template <typename Term>
inline F32x16 SumOfFour(int64_t size, const Term& term) {
  F32x16 sums[4] = {Zero(), Zero(), Zero(), Zero()};
  int64_t n = 0;
  for (; n + 4 <= size; n += 4) {
    for (int64_t i = 0; i < 4; ++i) sums[i] = term(n + i, sums[i]);
  }
  for (int64_t i = 0; n < size; ++n, ++i) sums[i] = term(n, sums[i]);
  return Add(Add(sums[0], sums[2]), Add(sums[1], sums[3]));
}

// The 16 columns of a block of a head's state, from `column` on.
template <bool kIsDelta>
inline void StepBlock(const RecurrenceArgs& args, int64_t head, int64_t column, float* state, const float* input, float* out) {
  const RecurrenceShape& shape = args.shape;
  const int64_t size = shape.key_size;
  const float* key = input + shape.key() + shape.group(head) * size;
  const float* query = input + shape.query() + shape.group(head) * size;
  const auto factor = [&](RecurrenceFactor which) { return Set1(input[shape.factor(which) + head]); };
  const int64_t num_columns = shape.value_size - column;
  const F32x16 value = LoadFirst(input + shape.value() + head * shape.value_size + column, num_columns);
  F32x16 written = value;
  if (kIsDelta) {
    const F32x16 memory = SumOfFour(size, [&](int64_t n, F32x16 sum) { return Fma(Load(state + n * 16), Set1(key[n]), sum); });
    written = Sub(written, Mul(factor(kMemoryFactor), memory));
  }
  written = Mul(written, factor(kWriteFactor));
  const F32x16 decay = factor(kDecayFactor);
  F32x16 read = SumOfFour(size, [&](int64_t n, F32x16 sum) {
    const F32x16 next = Fma(Set1(key[n]), written, Mul(decay, Load(state + n * 16)));
    Store(state + n * 16, next);
    return Fma(next, Set1(query[n]), sum);
  });
  if (out == nullptr) return;
  if (kIsDelta) read = Mul(read, factor(kReadFactor));
  if (args.skip != nullptr) read = Fma(Set1(args.skip[head]), value, read);
  StoreFirst(out + head * shape.value_size + column, num_columns, read);
}

}  // namespace

void recurrence_factors(const RecurrenceArgs& args, int64_t row_begin, int64_t row_end) {
  const RecurrenceShape& shape = args.shape;
  for (int64_t row = row_begin; row < row_end; ++row) {
    float* input = args.inputs + row * args.input_stride;
    for (int64_t head = 0; head < shape.num_heads; head += 16) {
      const int64_t count = shape.num_heads - head;
      const auto store = [&](RecurrenceFactor which, F32x16 a) { StoreFirst(input + shape.factor(which) + head, count, a); };
      const int64_t offset = row * args.time_stride + head;
      F32x16 step = Softplus(Add(LoadFirst(args.time + offset, count), LoadFirst(args.time_bias + head, count)));
      step = SelectLess(step, Set1(args.least_step), Set1(args.least_step), step);
      step = Min(Set1(args.most_step), step);
      const F32x16 decay = Exp(Mul(step, LoadFirst(args.decay + head, count)));
      store(kDecayFactor, decay);
      if (!shape.is_delta) {
        store(kWriteFactor, step);
        store(kMemoryFactor, Zero());
        store(kReadFactor, Zero());
        continue;
      }
      float keys[16] = {}, queries[16] = {};
      for (int64_t i = 0; i < 16 && i < count; ++i) {
        const int64_t group = shape.group(head + i);
        const bool is_known = i > 0 && group == shape.group(head + i - 1);
        keys[i] = is_known ? keys[i - 1] : InverseLength(input + shape.key() + group * shape.key_size, shape.key_size);
        queries[i] = is_known ? queries[i - 1] : InverseLength(input + shape.query() + group * shape.key_size, shape.key_size);
      }
      store(kMemoryFactor, Mul(decay, Load(keys)));
      store(kWriteFactor, Mul(Sigmoid(LoadFirst(args.write + offset, count)), Load(keys)));
      store(kReadFactor, Div(Load(queries), Set1(__builtin_sqrtf(static_cast<float>(shape.key_size)))));
    }
  }
}

void recurrence_step(const RecurrenceArgs& args, const RecurrenceTask& task, float* state, const float* input, float* out) {
  for (int64_t block = task.block_begin; block < task.block_end; ++block, state += args.shape.key_size * kStateColumns) {
    if (args.shape.is_delta) {
      StepBlock<true>(args, task.head, block * kStateColumns, state, input, out);
    } else {
      StepBlock<false>(args, task.head, block * kStateColumns, state, input, out);
    }
  }
}

}  // namespace llmi::LLMI_ISA_NAMESPACE

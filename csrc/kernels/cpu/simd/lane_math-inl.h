// core/scalar_math.h step by step over 16 lanes, and the fixed folds.
#pragma once

namespace {

inline F32x16 ReducedExpm1(F32x16 r) {
  F32x16 p = Set1(1.9875691500e-4f);
  p = Fma(p, r, Set1(1.3981999507e-3f));
  p = Fma(p, r, Set1(8.3334519073e-3f));
  p = Fma(p, r, Set1(4.1665795894e-2f));
  p = Fma(p, r, Set1(1.6666665459e-1f));
  p = Fma(p, r, Set1(5.0000001201e-1f));
  return Fma(p, Mul(r, r), r);
}
inline F32x16 ShiftedExponent(F32x16 x) { return Fma(x, Set1(1.44269504088896341f), Set1(llmi::kExpMagic)); }
inline F32x16 Reduced(F32x16 x, F32x16 n) { return Fma(n, Set1(2.12194440e-4f), Fma(n, Set1(-0.693359375f), x)); }

inline F32x16 Exp(F32x16 x) {
  const F32x16 clamped = Min(Set1(88.0f), x);
  const F32x16 shifted = ShiftedExponent(clamped);
  const F32x16 p = Add(ReducedExpm1(Reduced(clamped, Sub(shifted, Set1(llmi::kExpMagic)))), Set1(1.0f));
  return SelectLess(x, Set1(-86.0f), Zero(), Mul(p, PowerOfTwo(shifted)));
}

inline F32x16 Expm1(F32x16 x) {
  const F32x16 clamped = Min(Set1(88.0f), Max(Set1(-30.0f), x));
  const F32x16 shifted = ShiftedExponent(clamped);
  const F32x16 power = PowerOfTwo(shifted);
  return Fma(ReducedExpm1(Reduced(clamped, Sub(shifted, Set1(llmi::kExpMagic)))), power, Sub(power, Set1(1.0f)));
}

inline F32x16 Log(F32x16 x) {
  const F32x16 root = Set1(1.41421356f);
  const F32x16 exponent = ExponentOf(x);
  const F32x16 mantissa = MantissaOf(x);
  const F32x16 k = SelectLess(root, mantissa, Add(exponent, Set1(1.0f)), exponent);
  const F32x16 f = Sub(SelectLess(root, mantissa, Mul(mantissa, Set1(0.5f)), mantissa), Set1(1.0f));
  const F32x16 square = Mul(f, f);
  F32x16 p = Set1(7.0376836292e-2f);
  p = Fma(p, f, Set1(-1.1514610310e-1f));
  p = Fma(p, f, Set1(1.1676998740e-1f));
  p = Fma(p, f, Set1(-1.2420140846e-1f));
  p = Fma(p, f, Set1(1.4249322787e-1f));
  p = Fma(p, f, Set1(-1.6668057665e-1f));
  p = Fma(p, f, Set1(2.0000714765e-1f));
  p = Fma(p, f, Set1(-2.4999993993e-1f));
  p = Fma(p, f, Set1(3.3333331174e-1f));
  F32x16 y = Mul(Mul(p, f), square);
  y = Fma(k, Set1(-2.12194440e-4f), y);
  y = Fma(square, Set1(-0.5f), y);
  return Fma(k, Set1(0.693359375f), Add(f, y));
}

inline F32x16 Sigmoid(F32x16 x) { return Div(Set1(1.0f), Add(Set1(1.0f), Exp(Sub(Zero(), x)))); }

inline F32x16 Silu(F32x16 x) { return Div(x, Add(Set1(1.0f), Exp(Sub(Zero(), x)))); }

inline F32x16 GeluTanh(F32x16 x) {
  const F32x16 cube = Mul(Mul(x, x), x);
  const F32x16 minus_2u = Mul(Fma(cube, Set1(0.044715f), x), Set1(-1.5957691216057308f));
  return Div(x, Add(Set1(1.0f), Exp(minus_2u)));
}

inline F32x16 Gelu(F32x16 x) {
  const F32x16 magnitude = SelectLess(x, Zero(), Sub(Zero(), x), x);
  const F32x16 most = Set1(13.1f);
  const F32x16 t = Min(most, magnitude);
  const F32x16 inverse = Div(Set1(1.0f), Add(t, Set1(1.5f)));
  const F32x16 q = Mul(Sub(t, Set1(1.5f)), inverse);
  F32x16 tail = Set1(llmi::GeluCoefficientF32(0));
  for (int i = 1; i < 12; ++i) tail = Fma(tail, q, Set1(llmi::GeluCoefficientF32(i)));
  tail = Mul(tail, inverse);
  const F32x16 minus_half = Mul(t, Set1(-0.5f));
  const F32x16 square = Mul(t, minus_half);
  const F32x16 lost = Fma(t, minus_half, Sub(Zero(), square));
  const F32x16 shifted = ShiftedExponent(square);
  const F32x16 p = ReducedExpm1(Add(Reduced(square, Sub(shifted, Set1(llmi::kExpMagic))), lost));
  tail = Mul(Fma(p, tail, tail), PowerOfTwo(shifted));
  tail = SelectLess(most, magnitude, Zero(), tail);
  return Mul(x, SelectLess(x, Zero(), tail, Sub(Set1(1.0f), tail)));
}

inline F32x16 Relu(F32x16 x) { return Max(Zero(), x); }

// parameters: a_p, a_n, b, eps.
inline F32x16 Xielu(F32x16 x, const float* parameters) {
  const F32x16 linear = Mul(Set1(parameters[2]), x);
  const F32x16 bounded = Min(Set1(parameters[3]), x);
  return SelectLess(Zero(), x, Fma(Mul(Set1(parameters[0]), x), x, linear), Fma(Sub(Expm1(bounded), x), Set1(parameters[1]), linear));
}

// parameters: limit, alpha, plus.
inline F32x16 SwigluClamped(F32x16 gate, F32x16 up, const float* parameters) {
  const F32x16 limit = Set1(parameters[0]);
  const F32x16 g = Min(limit, gate);
  const F32x16 u = Max(Set1(0.0f - parameters[0]), Min(limit, up));
  return Mul(Div(g, Add(Set1(1.0f), Exp(Sub(Zero(), Mul(Set1(parameters[1]), g))))), Add(u, Set1(parameters[2])));
}

inline F32x16 SoftCap(F32x16 x, float cap) {
  const F32x16 e = Exp(Mul(Set1(2.0f), Div(x, Set1(cap))));
  return Mul(Set1(cap), Sub(Set1(1.0f), Div(Set1(2.0f), Add(Set1(1.0f), e))));
}

// The fixed tree over 16 lanes: i and i + 8, then 4, 2, 1 apart. In registers: through memory each step would wait for the stores before.
inline float FoldSum(F32x16 a) {
  const __m256 eight = _mm256_add_ps(FirstHalf(a), SecondHalf(a));
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

inline float FoldMax(F32x16 a) {
  const __m256 eight = _mm256_max_ps(FirstHalf(a), SecondHalf(a));
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

inline void CopyBytes(void* to, const void* from, int64_t num_bytes) { __builtin_memcpy(to, from, static_cast<size_t>(num_bytes)); }

// The low bytes, before rounding, of codes whose high bytes are y rounded to nearest even; |y| < 2^22 (kernels/ops/quantize_rows.h).
inline F32x16 LowBytes(F32x16 y) {
  const F32x16 magic = Set1(12582912.0f);
  const F32x16 low = Mul(Sub(y, Sub(Add(y, magic), magic)), Set1(256.0f));
  return Min(Max(low, Set1(-127.0f)), Set1(127.0f));
}

// Absmax quantisation of a block to int8 (kernels/ops/quantize_rows.h), from its magnitudes and 0 x its values.
struct AbsMax {
  bool finite;
  F32x16 inverse;  // codes are the values times this, rounded
  float scale;     // NaN if a value is not finite
};

inline AbsMax FoldAbsMax(F32x16 magnitudes, F32x16 zeros) {
  const float maximum = FoldMax(Max(magnitudes, Zero()));
  const float poison = FoldSum(zeros);  // NaN if any value is not finite, else 0
  const bool finite = poison == 0.0f;
  return {finite, Set1(finite && maximum > 0x1p-100f ? 127.0f / maximum : 0.0f), maximum / 127.0f + poison};
}

}  // namespace

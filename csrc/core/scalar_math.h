// Elementary functions as a fixed sequence of fma steps. The forward pass and the sampler use them instead of libm, so every machine gives
// the same bits. Each fp32 function here is the definition that the SIMD lanes repeat step by step (kernels/cpu/simd/lane_math-inl.h).
#pragma once

#include <cstdint>

#include "core/host_device.h"

namespace llmi {

#ifdef __CUDA_ARCH__
LLMI_HD static inline float Fma(float a, float b, float c) { return __fmaf_rn(a, b, c); }
LLMI_HD static inline double Fma(double a, double b, double c) { return __fma_rn(a, b, c); }
LLMI_HD static inline float SqrtF32(float x) { return __fsqrt_rn(x); }
LLMI_HD static inline double SqrtF64(double x) { return __dsqrt_rn(x); }
#else
LLMI_HD static inline float Fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
LLMI_HD static inline double Fma(double a, double b, double c) { return __builtin_fma(a, b, c); }
LLMI_HD static inline float SqrtF32(float x) { return __builtin_sqrtf(x); }
LLMI_HD static inline double SqrtF64(double x) { return __builtin_sqrt(x); }
#endif

constexpr float kExpMagic = 12582912.0f + 127.0f;  // 1.5 x 2^23, plus the bias of fp32 exponents
constexpr float kLeastNormal = 0x1p-126f;          // the least normal fp32 number

// exp(r) - 1 for |r| <= log(2) / 2: Cephes polynomial.
LLMI_HD static inline float ReducedExpm1F32(float r) {
  float p = 1.9875691500e-4f;
  p = Fma(p, r, 1.3981999507e-3f);
  p = Fma(p, r, 8.3334519073e-3f);
  p = Fma(p, r, 4.1665795894e-2f);
  p = Fma(p, r, 1.6666665459e-1f);
  p = Fma(p, r, 5.0000001201e-1f);
  return Fma(p, r * r, r);
}
// x = n log(2) + r, by Cody-Waite: n as shifted - kExpMagic, whose low bits become the exponent's bits of 2^n (PowerOfTwoF32).
LLMI_HD static inline float ShiftedExponentF32(float x) { return Fma(x, 1.44269504088896341f, kExpMagic); }
LLMI_HD static inline float ReducedF32(float x, float n) { return Fma(n, 2.12194440e-4f, Fma(n, -0.693359375f, x)); }
LLMI_HD static inline float PowerOfTwoF32(float shifted) { return __builtin_bit_cast(float, __builtin_bit_cast(uint32_t, shifted) << 23); }

// exp in fp32: Cephes polynomial after Cody-Waite reduction, error below 2 ulp. The result is exactly 1 at 0, and exactly 0 below -86, so
// it is never subnormal. Arguments above 88 count as 88; NaN gives NaN.
LLMI_HD static inline float ExpF32(float x) {
  const float clamped = 88.0f < x ? 88.0f : x;
  const float shifted = ShiftedExponentF32(clamped);
  const float p = ReducedExpm1F32(ReducedF32(clamped, shifted - kExpMagic)) + 1.0f;
  // A product, not a sum of exponents: a NaN of any bits stays NaN.
  const float result = p * PowerOfTwoF32(shifted);
  return x < -86.0f ? 0.0f : result;
}

// exp(x) - 1 in fp32, without cancellation: 2^n (exp(r) - 1) + (2^n - 1); error below 2 ulp. Arguments above 88 count as 88, those below
// -30 as -30, where the result is -1; NaN gives NaN.
LLMI_HD static inline float Expm1F32(float x) {
  const float bounded = -30.0f > x ? -30.0f : x;
  const float clamped = 88.0f < bounded ? 88.0f : bounded;
  const float shifted = ShiftedExponentF32(clamped);
  const float power = PowerOfTwoF32(shifted);
  return Fma(ReducedExpm1F32(ReducedF32(clamped, shifted - kExpMagic)), power, power - 1.0f);
}

// 1 / (1 + exp(-x)); error below 3 ulp.
LLMI_HD static inline float SigmoidF32(float x) { return 1.0f / (1.0f + ExpF32(0.0f - x)); }

// x * sigmoid(x).
LLMI_HD static inline float SiluF32(float x) { return x / (1.0f + ExpF32(0.0f - x)); }

// GELU, tanh form: 0.5 x (1 + tanh(u)) = x / (1 + exp(-2u)), u = sqrt(2/pi) (x + 0.044715 x^3).
LLMI_HD static inline float GeluTanhF32(float x) {
  const float cube = (x * x) * x;
  const float minus_2u = Fma(cube, 0.044715f, x) * -1.5957691216057308f;
  return x / (1.0f + ExpF32(minus_2u));
}

// Coefficient i of the 12 of GeluF32's P, from that of the highest power on.
LLMI_HD static inline float GeluCoefficientF32(int i) {
  constexpr float coefficients[] = {0.00015207934484351426f, 0.00046451209345832467f, 0.0002504737349227071f, -0.001037922571413219f,
                                    -0.0027113324031233788f, -0.0024378239177167416f, 0.003988632932305336f,  0.01764165610074997f,
                                    0.017896436154842377f,   -0.057495612651109695f,  -0.19509947299957275f,  0.6173419952392578f};
  return coefficients[i];
}

// GELU, x Phi(x), where Phi is the normal law's distribution function; error below 4 ulp, in the tail too, and 0 below -13.1.
// With t = |x|: Phi(-t) = exp(-t^2 / 2) P(q) / (t + 3/2), q = (t - 3/2) / (t + 3/2), P fitted to a relative error of 2^-27.
LLMI_HD static inline float GeluF32(float x) {
  const float magnitude = x < 0.0f ? 0.0f - x : x;
  const float t = 13.1f < magnitude ? 13.1f : magnitude;
  const float inverse = 1.0f / (t + 1.5f);
  const float q = (t - 1.5f) * inverse;
  float tail = GeluCoefficientF32(0);
  for (int i = 1; i < 12; ++i) tail = Fma(tail, q, GeluCoefficientF32(i));
  tail = tail * inverse;
  // exp of -t^2 / 2, with the product's rounding error `lost`.
  const float minus_half = t * -0.5f;
  const float square = t * minus_half;
  const float lost = Fma(t, minus_half, 0.0f - square);
  const float shifted = ShiftedExponentF32(square);
  const float p = ReducedExpm1F32(ReducedF32(square, shifted - kExpMagic) + lost);
  tail = Fma(p, tail, tail) * PowerOfTwoF32(shifted);
  tail = 13.1f < magnitude ? 0.0f : tail;
  return x * (x < 0.0f ? tail : 1.0f - tail);
}

// The larger of x and 0; NaN stays NaN.
LLMI_HD static inline float ReluF32(float x) { return 0.0f > x ? 0.0f : x; }

// xIELU (kernels/ops/activation.h).
LLMI_HD static inline float XieluF32(float x, float a_p, float a_n, float b, float eps) {
  const float linear = b * x;
  const float bounded = eps < x ? eps : x;
  return 0.0f < x ? Fma(a_p * x, x, linear) : Fma(Expm1F32(bounded) - x, a_n, linear);
}

// The value of x that is no farther from 0 than limit; NaN stays NaN.
LLMI_HD static inline float ClampF32(float x, float limit) {
  const float below = limit < x ? limit : x;
  return 0.0f - limit > below ? 0.0f - limit : below;
}

// Clamped SwiGLU (kernels/ops/activation.h).
LLMI_HD static inline float SwigluClampedF32(float gate, float up, float limit, float alpha, float plus) {
  const float g = limit < gate ? limit : gate;
  return g / (1.0f + ExpF32(0.0f - alpha * g)) * (ClampF32(up, limit) + plus);
}

// cap * tanh(x / cap) = cap * (1 - 2 / (1 + exp(2x / cap))).
LLMI_HD static inline float SoftCapF32(float x, float cap) { return cap * (1.0f - 2.0f / (1.0f + ExpF32(2.0f * (x / cap)))); }

// Natural logarithm in fp32 of a positive, normal, finite x: Cephes polynomial on m in [sqrt(1/2), sqrt(2)), x = 2^k m; error below 2 ulp.
LLMI_HD static inline float LogF32(float x) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, x);
  const float exponent = static_cast<float>(static_cast<int32_t>(bits >> 23) - 127);
  const float mantissa = __builtin_bit_cast(float, (bits & 0x007FFFFFu) | 0x3F800000u);
  const bool large = 1.41421356f < mantissa;
  const float k = large ? exponent + 1.0f : exponent;
  const float f = (large ? mantissa * 0.5f : mantissa) - 1.0f;
  const float square = f * f;
  float p = 7.0376836292e-2f;
  p = Fma(p, f, -1.1514610310e-1f);
  p = Fma(p, f, 1.1676998740e-1f);
  p = Fma(p, f, -1.2420140846e-1f);
  p = Fma(p, f, 1.4249322787e-1f);
  p = Fma(p, f, -1.6668057665e-1f);
  p = Fma(p, f, 2.0000714765e-1f);
  p = Fma(p, f, -2.4999993993e-1f);
  p = Fma(p, f, 3.3333331174e-1f);
  float y = (p * f) * square;
  y = Fma(k, -2.12194440e-4f, y);
  y = Fma(square, -0.5f, y);
  return Fma(k, 0.693359375f, f + y);
}

// Natural logarithm in fp64 of a positive finite x: x = 2^k m with m in [sqrt(1/2), sqrt(2)),
// log m = 2 atanh(s), s = (m-1)/(m+1), series to s^21; error below 2 ulp.
LLMI_HD static inline double LogF64(double x) {
  int k = 0;
  if (x < 0x1p-1022) {  // subnormal
    x *= 0x1p54;
    k -= 54;
  }
  uint64_t bits = __builtin_bit_cast(uint64_t, x);
  k += static_cast<int>(bits >> 52) - 1023;
  double m = __builtin_bit_cast(double, (bits & 0xFFFFFFFFFFFFFull) | 0x3FF0000000000000ull);
  if (m > 1.4142135623730951) {
    m *= 0.5;
    k += 1;
  }
  const double f = m - 1.0;
  const double s = f / (2.0 + f);
  const double z = s * s;
  double p = 1.0 / 21.0;
  p = Fma(p, z, 1.0 / 19.0);
  p = Fma(p, z, 1.0 / 17.0);
  p = Fma(p, z, 1.0 / 15.0);
  p = Fma(p, z, 1.0 / 13.0);
  p = Fma(p, z, 1.0 / 11.0);
  p = Fma(p, z, 1.0 / 9.0);
  p = Fma(p, z, 1.0 / 7.0);
  p = Fma(p, z, 1.0 / 5.0);
  p = Fma(p, z, 1.0 / 3.0);
  const double log_m = Fma(2.0 * s * z, p, 2.0 * s);
  const double dk = static_cast<double>(k);
  return Fma(dk, 0.69314718055994528623, Fma(dk, 2.3190468138462996e-17, log_m));
}

// log(1 + x) in fp64 for x in (-1, 0]. The rounding error of 1 + x is corrected to first order.
LLMI_HD static inline double Log1pF64(double x) {
  const double u = 1.0 + x;
  if (u == 1.0) return x;
  const double lost = x - (u - 1.0);
  return LogF64(u) + lost / u;
}

// exp in fp64 for |x| < 700; Taylor to degree 13 after reduction, error below 2 ulp.
LLMI_HD static inline double ExpF64(double x) {
  const double n = __builtin_nearbyint(x * 1.4426950408889634);
  double r = Fma(n, -0.69314718036912382, x);
  r = Fma(n, -1.9082149292705877e-10, r);
  double p = 1.0 / 6227020800.0;
  const double inverse_factorials[] = {1.0 / 479001600.0,
                                       1.0 / 39916800.0,
                                       1.0 / 3628800.0,
                                       1.0 / 362880.0,
                                       1.0 / 40320.0,
                                       1.0 / 5040.0,
                                       1.0 / 720.0,
                                       1.0 / 120.0,
                                       1.0 / 24.0,
                                       1.0 / 6.0,
                                       0.5,
                                       1.0,
                                       1.0};
  for (double c : inverse_factorials) p = Fma(p, r, c);
  const int64_t exponent = static_cast<int64_t>(n);
  return p * __builtin_bit_cast(double, static_cast<uint64_t>(exponent + 1023) << 52);
}

// Sine and cosine in fp64 for |x| below about 1e6: three-part Cody-Waite reduction by pi/2, Taylor series.
LLMI_HD static inline void SinCosF64(double x, double* sine, double* cosine) {
  const double n = __builtin_nearbyint(x * 0.63661977236758134308);
  double r = Fma(n, -1.57079632673412561417, x);
  r = Fma(n, -6.07710050630396597660e-11, r);
  r = Fma(n, -2.02226624879595063154e-21, r);
  const double z = r * r;
  double s = -1.0 / 1307674368000.0;
  const double sine_terms[] = {1.0 / 6227020800.0, -1.0 / 39916800.0, 1.0 / 362880.0, -1.0 / 5040.0, 1.0 / 120.0, -1.0 / 6.0};
  for (double c : sine_terms) s = Fma(s, z, c);
  s = Fma(s * z, r, r);
  double c = 1.0 / 20922789888000.0;
  const double cosine_terms[] = {
      -1.0 / 87178291200.0, 1.0 / 479001600.0, -1.0 / 3628800.0, 1.0 / 40320.0, -1.0 / 720.0, 1.0 / 24.0, -0.5, 1.0};
  for (double term : cosine_terms) c = Fma(c, z, term);
  const int64_t quadrant = static_cast<int64_t>(n) & 3;
  const double sines[] = {s, c, -s, -c};
  const double cosines[] = {c, -s, -c, s};
  *sine = sines[quadrant];
  *cosine = cosines[quadrant];
}

}  // namespace llmi

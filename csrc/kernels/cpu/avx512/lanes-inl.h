// The canonical 16 lanes as one AVX-512 register.
#pragma once

#include <immintrin.h>
#include <stdint.h>

#ifndef LLMI_ISA_NAMESPACE
#define LLMI_ISA_NAMESPACE avx512
#endif

namespace {

// Queries of attention that a pass takes at once.
constexpr int kScoreQueries = 8;  // 8 sums in flight hide the fma latency
constexpr int kValueQueries = 6;  // 6 x 4 sums
inline constexpr int ScoreTilesAtOnce(int num_queries) { return kScoreQueries / num_queries; }
inline constexpr int ValueDimsAtOnce(int /*num_queries*/) { return 4; }
// Rows and tiles of float weights that a pass takes at once: 24 sums, a register of weights for each tile, a broadcast. If there are at
// most eight rows in total, one pass takes them all.
constexpr int kFloatRows = 6;
constexpr int kFloatRowsAlone = 8;
inline constexpr int FloatTilesAtOnce(int num_rows) { return num_rows > kFloatRows ? 3 : 4; }

struct F32x16 {
  __m512 v;
};

inline F32x16 Set1(float x) { return {_mm512_set1_ps(x)}; }
inline F32x16 Zero() { return {_mm512_setzero_ps()}; }
inline F32x16 Load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline F32x16 LoadHalf(const uint16_t* p) { return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))}; }
// All lanes the same fp16.
inline F32x16 Set1Half(uint16_t x) { return {_mm512_cvtph_ps(_mm256_set1_epi16(static_cast<int16_t>(x)))}; }
inline F32x16 LoadBfloat16(const uint16_t* p) {
  const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16))};
}
// In AVX-512 one register holds all 16 in order.
inline F32x16 LoadBfloat16EvenOdd(const uint16_t* p) { return LoadBfloat16(p); }
inline F32x16 InOrder(F32x16 a) { return a; }
inline F32x16 LoadInt8(const int8_t* p) {
  return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
}
// The low or high four bits of 16 bytes.
inline F32x16 LoadLowNibbles(const uint8_t* p) {
  const __m128i bytes = _mm_and_si128(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)), _mm_set1_epi8(15));
  return {_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes))};
}
inline F32x16 LoadHighNibbles(const uint8_t* p) {
  return {_mm512_cvtepi32_ps(_mm512_srli_epi32(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))), 4))};
}
// PowerOfTwoScale of 16 bytes (core/float8.h): the first operand of the maximum is right from 2 on, the second below.
inline F32x16 LoadPowersOfTwo(const uint8_t* p) {
  const __m512i exponents = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  const __m512i normal = _mm512_sub_epi32(_mm512_slli_epi32(exponents, 23), _mm512_set1_epi32(1 << 23));
  const __m512i subnormal = _mm512_sllv_epi32(_mm512_set1_epi32(1 << 21), _mm512_min_epi32(exponents, _mm512_set1_epi32(1)));
  return {_mm512_castsi512_ps(_mm512_max_epi32(normal, subnormal))};
}
// Converts e4m3 codes to fp16 codes of 2^-8 times their value; NaN is handled separately.
inline F32x16 LoadFloat8(const uint8_t* p) {
  const __m256i codes = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  const __m256i sign = _mm256_slli_epi16(_mm256_and_si256(codes, _mm256_set1_epi16(0x80)), 8);
  const __m256i halves = _mm256_or_si256(sign, _mm256_slli_epi16(_mm256_and_si256(codes, _mm256_set1_epi16(0x7F)), 7));
  const __m512 value = _mm512_mul_ps(_mm512_cvtph_ps(halves), _mm512_set1_ps(256.0f));
  const __mmask16 is_nan = _mm512_cmp_ps_mask(_mm512_abs_ps(value), _mm512_set1_ps(480.0f), _CMP_EQ_OQ);
  return {_mm512_mask_mov_ps(value, is_nan, _mm512_set1_ps(__builtin_nanf("")))};
}
inline void Store(float* p, F32x16 a) { _mm512_storeu_ps(p, a.v); }
inline void StoreHalf(uint16_t* p, F32x16 a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
// Rounds to nearest even; a NaN stays a NaN (core/bfloat16.h).
inline void StoreBfloat16(uint16_t* p, F32x16 a) {
  const __m512i bits = _mm512_castps_si512(a.v);
  const __m512i last = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(last, _mm512_set1_epi32(0x7FFF)));
  const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
  const __m512i chosen = _mm512_mask_blend_epi32(_mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q), rounded, quiet);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(_mm512_srli_epi32(chosen, 16)));
}
// 16 pairs of bf16, in 32 bits each: the pairs with only their odd elements, or only their even ones; and these elements as fp32.
inline F32x16 AndBits(F32x16 a, uint32_t bits) {
  return {_mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(a.v), _mm512_set1_epi32(static_cast<int32_t>(bits))))};
}
inline F32x16 KeepOdd(F32x16 a) { return AndBits(a, 0xFFFF0000u); }
inline F32x16 KeepEven(F32x16 a) { return AndBits(a, 0xFFFFu); }
inline F32x16 WidenOdd(F32x16 a) { return KeepOdd(a); }
inline F32x16 WidenEven(F32x16 a) { return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(a.v), 16))}; }
// Columns k and k + 1 of 16 rows of bf16, one after the other at p, as 16 pairs.
inline F32x16 LoadColumnPair(const uint16_t* p) {
  const __m512i rows = _mm512_cvtepu8_epi32(_mm_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
  const __m512i order = _mm512_or_si512(rows, _mm512_slli_epi32(_mm512_add_epi32(rows, _mm512_set1_epi32(16)), 16));
  return {_mm512_castsi512_ps(_mm512_permutexvar_epi16(order, _mm512_loadu_si512(p)))};
}
inline __m256 FirstHalf(F32x16 a) { return _mm512_castps512_ps256(a.v); }
inline __m256 SecondHalf(F32x16 a) { return _mm512_extractf32x8_ps(a.v, 1); }
inline F32x16 Add(F32x16 a, F32x16 b) { return {_mm512_add_ps(a.v, b.v)}; }
inline F32x16 Sub(F32x16 a, F32x16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline F32x16 Mul(F32x16 a, F32x16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline F32x16 Div(F32x16 a, F32x16 b) { return {_mm512_div_ps(a.v, b.v)}; }
inline F32x16 Fma(F32x16 a, F32x16 b, F32x16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
// Max is a > b ? a : b, and Min is a < b ? a : b, so both give b if either operand is NaN.
inline F32x16 Max(F32x16 a, F32x16 b) { return {_mm512_max_ps(a.v, b.v)}; }
inline F32x16 Min(F32x16 a, F32x16 b) { return {_mm512_min_ps(a.v, b.v)}; }
inline F32x16 Abs(F32x16 a) { return {_mm512_abs_ps(a.v)}; }
// x < limit ? then : otherwise
inline F32x16 SelectLess(F32x16 x, F32x16 limit, F32x16 then, F32x16 otherwise) {
  return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(x.v, limit.v, _CMP_LT_OQ), otherwise.v, then.v)};
}
// Bit i is a[i] < b[i]; false if either is NaN.
inline uint32_t LessMask(F32x16 a, F32x16 b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ); }
// Keeps lanes [begin, end) and sets the others to `other`.
inline F32x16 KeepLanes(F32x16 a, int begin, int end, F32x16 other) {
  const uint32_t mask = ((1u << end) - 1u) & ~((1u << begin) - 1u);
  return {_mm512_mask_blend_ps(static_cast<__mmask16>(mask), other.v, a.v)};
}
// The exponent, and the mantissa in [1, 2), of a positive, normal, finite number.
inline F32x16 ExponentOf(F32x16 x) { return {_mm512_getexp_ps(x.v)}; }
inline F32x16 MantissaOf(F32x16 x) { return {_mm512_getmant_ps(x.v, _MM_MANT_NORM_1_2, _MM_MANT_SIGN_src)}; }
// The number whose exponent is the low bits of `shifted` (core/scalar_math.h, ExpF32).
inline F32x16 PowerOfTwo(F32x16 shifted) { return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(shifted.v), 23))}; }
// p[lane] = x, for 16 elements at p. All 16 are loaded and stored: a load of all of them soon after need not wait for the store.
inline void SetLane(int8_t* p, int lane, int8_t x) {
  auto* all = reinterpret_cast<__m128i*>(p);
  _mm_storeu_si128(all, _mm_mask_set1_epi8(_mm_loadu_si128(all), static_cast<__mmask16>(1u << lane), x));
}
inline void SetLane(uint16_t* p, int lane, uint16_t x) {
  auto* all = reinterpret_cast<__m256i*>(p);
  _mm256_storeu_si256(all, _mm256_mask_set1_epi16(_mm256_loadu_si256(all), static_cast<__mmask16>(1u << lane), static_cast<int16_t>(x)));
}
inline void SetLane(uint32_t* p, int lane, uint32_t x) {
  _mm512_storeu_si512(p, _mm512_mask_set1_epi32(_mm512_loadu_si512(p), static_cast<__mmask16>(1u << lane), static_cast<int32_t>(x)));
}
// 16 int8 from 16 fp32, rounded to nearest even; values within [-127, 127]. Returns their sum.
inline int32_t StoreInt8(int8_t* p, F32x16 a) {
  const __m512i codes = _mm512_cvtps_epi32(a.v);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(codes));
  return _mm512_reduce_add_epi32(codes);
}
// The larger of two values that are not negative, compared by their bits: NaN is the largest.
inline F32x16 MaxBits(F32x16 a, F32x16 b) {
  return {_mm512_castsi512_ps(_mm512_max_epi32(_mm512_castps_si512(a.v), _mm512_castps_si512(b.v)))};
}
// Lane i is the MaxBits of all lanes of a[i].
inline F32x16 FoldMaxBits(const F32x16 (&a)[16]) {
  F32x16 twos[8], fours[4];
  for (int i = 0; i < 8; ++i) {
    twos[i] = MaxBits({_mm512_unpacklo_ps(a[2 * i].v, a[2 * i + 1].v)}, {_mm512_unpackhi_ps(a[2 * i].v, a[2 * i + 1].v)});
  }
  for (int i = 0; i < 4; ++i) {
    const __m512d even = _mm512_castps_pd(twos[2 * i].v);
    const __m512d odd = _mm512_castps_pd(twos[2 * i + 1].v);
    fours[i] = MaxBits({_mm512_castpd_ps(_mm512_unpacklo_pd(even, odd))}, {_mm512_castpd_ps(_mm512_unpackhi_pd(even, odd))});
  }
  const auto fold_quarters = [](F32x16 even, F32x16 odd) {
    return MaxBits({_mm512_shuffle_f32x4(even.v, odd.v, 0x88)}, {_mm512_shuffle_f32x4(even.v, odd.v, 0xDD)});
  };
  return fold_quarters(fold_quarters(fours[0], fours[1]), fold_quarters(fours[2], fours[3]));
}
// The sums of neighbouring lanes: first a's eight, then b's.
inline F32x16 AddPairs(F32x16 a, F32x16 b) {
  const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
  return {_mm512_add_ps(_mm512_permutex2var_ps(a.v, even, b.v), _mm512_permutex2var_ps(a.v, odd, b.v))};
}
// The 16 sums of 16 codes each: stored as integers at `sums`, and returned as floats.
inline F32x16 StoreSumsOfCodes(const int8_t* codes, int32_t* sums) {
  __m512i eights[4];
  for (int i = 0; i < 4; ++i) {
    const __m512i biased = _mm512_xor_si512(_mm512_loadu_si512(codes + 64 * i), _mm512_set1_epi8(-128));
    eights[i] = _mm512_sad_epu8(biased, _mm512_setzero_si512());
  }
  const auto add_neighbours = [](__m512i a, __m512i b) {
    return _mm512_add_epi64(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
  };
  const __m512i low = add_neighbours(eights[0], eights[1]);  // sums 0 4 1 5 2 6 3 7
  const __m512i high = add_neighbours(eights[2], eights[3]);
  const __m512i both = _mm512_or_si512(low, _mm512_slli_epi64(high, 32));
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 2, 6, 10, 14, 1, 5, 9, 13, 3, 7, 11, 15);
  const __m512i result = _mm512_sub_epi32(_mm512_permutexvar_epi32(order, both), _mm512_set1_epi32(16 * 128));
  _mm512_storeu_si512(sums, result);
  return {_mm512_cvtepi32_ps(result)};
}
// 16 uint64 from 16 fp32 in [0, 2^63), rounded to nearest even.
inline void StoreUint64(uint64_t* p, F32x16 a) {
  _mm512_storeu_si512(p, _mm512_cvtps_epu64(_mm512_castps512_ps256(a.v)));
  _mm512_storeu_si512(p + 8, _mm512_cvtps_epu64(_mm512_extractf32x8_ps(a.v, 1)));
}

// 16 doubles.
struct F64x16 {
  __m512d lo, hi;
};

inline F64x16 SetD(double x) { return {_mm512_set1_pd(x), _mm512_set1_pd(x)}; }
inline F64x16 LoadD(const double* p) { return {_mm512_loadu_pd(p), _mm512_loadu_pd(p + 8)}; }
inline void StoreD(double* p, F64x16 a) {
  _mm512_storeu_pd(p, a.lo);
  _mm512_storeu_pd(p + 8, a.hi);
}
inline F64x16 ToDouble(F32x16 a) { return {_mm512_cvtps_pd(_mm512_castps512_ps256(a.v)), _mm512_cvtps_pd(_mm512_extractf32x8_ps(a.v, 1))}; }
inline F64x16 AddD(F64x16 a, F64x16 b) { return {_mm512_add_pd(a.lo, b.lo), _mm512_add_pd(a.hi, b.hi)}; }
inline F64x16 SubD(F64x16 a, F64x16 b) { return {_mm512_sub_pd(a.lo, b.lo), _mm512_sub_pd(a.hi, b.hi)}; }
inline F64x16 MulD(F64x16 a, F64x16 b) { return {_mm512_mul_pd(a.lo, b.lo), _mm512_mul_pd(a.hi, b.hi)}; }

struct U32x16 {
  __m512i v;
};

inline U32x16 SetU(uint32_t x) { return {_mm512_set1_epi32(static_cast<int32_t>(x))}; }
inline U32x16 LoadU(const uint32_t* p) { return {_mm512_loadu_si512(p)}; }
inline void StoreU(uint32_t* p, U32x16 a) { _mm512_storeu_si512(p, a.v); }
inline U32x16 Xor(U32x16 a, U32x16 b) { return {_mm512_xor_si512(a.v, b.v)}; }
inline U32x16 AddU(U32x16 a, U32x16 b) { return {_mm512_add_epi32(a.v, b.v)}; }
// The low and high words of a[i] b[i].
inline U32x16 MulWide(U32x16 a, U32x16 b, U32x16* high) {
  const __m512i even = _mm512_mul_epu32(a.v, b.v);
  const __m512i odd = _mm512_mul_epu32(_mm512_srli_epi64(a.v, 32), _mm512_srli_epi64(b.v, 32));
  *high = {_mm512_mask_blend_epi32(0xAAAA, _mm512_srli_epi64(even, 32), odd)};
  return {_mm512_mask_blend_epi32(0xAAAA, even, _mm512_slli_epi64(odd, 32))};
}
// floor(a / 256) 2^-24, exact.
inline F32x16 UnitFloat(U32x16 a) { return {_mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_srli_epi32(a.v, 8)), _mm512_set1_ps(0x1p-24f))}; }

}  // namespace

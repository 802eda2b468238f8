// The canonical 16 lanes as two AVX2 registers.
#pragma once

#include <immintrin.h>
#include <stdint.h>

#ifndef LLMI_ISA_NAMESPACE
#define LLMI_ISA_NAMESPACE avx2
#endif

namespace {

// Queries of attention that a pass takes at once: six sums of two registers, as for float weights below.
constexpr int kScoreQueries = 6;
constexpr int kValueQueries = 6;
inline constexpr int ScoreTilesAtOnce(int num_queries) { return num_queries == 1 ? 4 : num_queries == 2 ? 2 : 1; }
inline constexpr int ValueDimsAtOnce(int num_queries) { return num_queries == 1 ? 4 : num_queries == 2 ? 2 : 1; }
// Rows and tiles of float weights that a pass takes at once: six sums of two registers, two registers of weights, a broadcast.
constexpr int kFloatRows = 6;
constexpr int kFloatRowsAlone = kFloatRows;
inline constexpr int FloatTilesAtOnce(int num_rows) { return num_rows == 1 ? 4 : num_rows <= 3 ? 2 : 1; }

struct F32x16 {
  __m256 lo, hi;
};

inline F32x16 Set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline F32x16 Zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
inline F32x16 Load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline F32x16 LoadHalf(const uint16_t* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
          _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))};
}
// All lanes the same fp16.
inline F32x16 Set1Half(uint16_t x) {
  const __m256 wide = _mm256_cvtph_ps(_mm_set1_epi16(static_cast<int16_t>(x)));
  return {wide, wide};
}
inline __m256 WidenBfloat16(const uint16_t* p) {
  const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}
inline F32x16 LoadBfloat16(const uint16_t* p) { return {WidenBfloat16(p), WidenBfloat16(p + 8)}; }
inline F32x16 LoadInt8(const int8_t* p) {
  const __m128i codes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(codes)), _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(codes, 8)))};
}
// 16 bytes as 32-bit integers.
inline void LoadBytes(const uint8_t* p, __m256i* lo, __m256i* hi) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  *lo = _mm256_cvtepu8_epi32(bytes);
  *hi = _mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8));
}
// The low or high four bits of 16 bytes.
inline F32x16 LoadLowNibbles(const uint8_t* p) {
  __m256i lo, hi;
  LoadBytes(p, &lo, &hi);
  const __m256i mask = _mm256_set1_epi32(15);
  return {_mm256_cvtepi32_ps(_mm256_and_si256(lo, mask)), _mm256_cvtepi32_ps(_mm256_and_si256(hi, mask))};
}
inline F32x16 LoadHighNibbles(const uint8_t* p) {
  __m256i lo, hi;
  LoadBytes(p, &lo, &hi);
  return {_mm256_cvtepi32_ps(_mm256_srli_epi32(lo, 4)), _mm256_cvtepi32_ps(_mm256_srli_epi32(hi, 4))};
}
// PowerOfTwoScale of 16 bytes (core/float8.h): the first operand of the maximum is right from 2 on, the second below.
inline F32x16 LoadPowersOfTwo(const uint8_t* p) {
  const auto convert = [](__m256i exponents) {
    const __m256i normal = _mm256_sub_epi32(_mm256_slli_epi32(exponents, 23), _mm256_set1_epi32(1 << 23));
    const __m256i subnormal = _mm256_sllv_epi32(_mm256_set1_epi32(1 << 21), _mm256_min_epi32(exponents, _mm256_set1_epi32(1)));
    return _mm256_castsi256_ps(_mm256_max_epi32(normal, subnormal));
  };
  __m256i lo, hi;
  LoadBytes(p, &lo, &hi);
  return {convert(lo), convert(hi)};
}
// Converts e4m3 codes to fp16 codes of 2^-8 times their value; NaN is handled separately.
inline F32x16 LoadFloat8(const uint8_t* p) {
  const __m256i codes = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  const __m256i sign = _mm256_slli_epi16(_mm256_and_si256(codes, _mm256_set1_epi16(0x80)), 8);
  const __m256i halves = _mm256_or_si256(sign, _mm256_slli_epi16(_mm256_and_si256(codes, _mm256_set1_epi16(0x7F)), 7));
  const auto widen = [](__m128i half) {
    const __m256 value = _mm256_mul_ps(_mm256_cvtph_ps(half), _mm256_set1_ps(256.0f));
    const __m256 magnitude = _mm256_andnot_ps(_mm256_set1_ps(-0.0f), value);
    const __m256 is_nan = _mm256_cmp_ps(magnitude, _mm256_set1_ps(480.0f), _CMP_EQ_OQ);
    return _mm256_blendv_ps(value, _mm256_set1_ps(__builtin_nanf("")), is_nan);  // the NaN that exp keeps (core/scalar_math.h)
  };
  return {widen(_mm256_castsi256_si128(halves)), widen(_mm256_extracti128_si256(halves, 1))};
}
inline void Store(float* p, F32x16 a) {
  _mm256_storeu_ps(p, a.lo);
  _mm256_storeu_ps(p + 8, a.hi);
}
inline void StoreHalf(uint16_t* p, F32x16 a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(a.lo, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 8), _mm256_cvtps_ph(a.hi, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
// Rounds to nearest even; a NaN stays a NaN (core/bfloat16.h).
inline __m256i RoundToBfloat16(__m256 a) {
  const __m256i bits = _mm256_castps_si256(a);
  const __m256i last = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(last, _mm256_set1_epi32(0x7FFF)));
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q));
  return _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, is_nan), 16);
}
inline void StoreBfloat16(uint16_t* p, F32x16 a) {
  const __m256i packed = _mm256_packus_epi32(RoundToBfloat16(a.lo), RoundToBfloat16(a.hi));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(packed, 0xD8));
}
// 16 pairs of bf16, in 32 bits each: the pairs with only their odd elements, or only their even ones; and these elements as fp32.
inline __m256 AndBits(__m256 a, int32_t bits) { return _mm256_and_ps(a, _mm256_castsi256_ps(_mm256_set1_epi32(bits))); }
inline __m256 OddToFloat(__m256 a) { return AndBits(a, static_cast<int32_t>(0xFFFF0000)); }
inline F32x16 KeepOdd(F32x16 a) { return {OddToFloat(a.lo), OddToFloat(a.hi)}; }
inline F32x16 KeepEven(F32x16 a) { return {AndBits(a.lo, 0xFFFF), AndBits(a.hi, 0xFFFF)}; }
inline F32x16 WidenOdd(F32x16 a) { return KeepOdd(a); }
inline __m256 EvenToFloat(__m256 a) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(a), 16)); }
inline F32x16 WidenEven(F32x16 a) { return {EvenToFloat(a.lo), EvenToFloat(a.hi)}; }
// LoadBfloat16 in half the operations: the eight even elements, then the odd ones. InOrder restores their order.
inline F32x16 LoadBfloat16EvenOdd(const uint16_t* p) {
  const __m256 pairs = _mm256_castsi256_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  return {EvenToFloat(pairs), OddToFloat(pairs)};
}
inline F32x16 InOrder(F32x16 even_odd) {
  const __m256 first = _mm256_unpacklo_ps(even_odd.lo, even_odd.hi);  // 0 to 3, 8 to 11
  const __m256 second = _mm256_unpackhi_ps(even_odd.lo, even_odd.hi);
  return {_mm256_permute2f128_ps(first, second, 0x20), _mm256_permute2f128_ps(first, second, 0x31)};
}
// Columns k and k + 1 of 16 rows of bf16, one after the other at p, as 16 pairs.
inline F32x16 LoadColumnPair(const uint16_t* p) {
  const __m256i even = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  const __m256i odd = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 16));
  const __m256i first = _mm256_unpacklo_epi16(even, odd);  // rows 0 to 3, 8 to 11
  const __m256i second = _mm256_unpackhi_epi16(even, odd);
  return {_mm256_castsi256_ps(_mm256_permute2x128_si256(first, second, 0x20)),
          _mm256_castsi256_ps(_mm256_permute2x128_si256(first, second, 0x31))};
}
inline __m256 FirstHalf(F32x16 a) { return a.lo; }
inline __m256 SecondHalf(F32x16 a) { return a.hi; }
inline F32x16 Add(F32x16 a, F32x16 b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
inline F32x16 Sub(F32x16 a, F32x16 b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
inline F32x16 Mul(F32x16 a, F32x16 b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
inline F32x16 Div(F32x16 a, F32x16 b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
inline F32x16 Fma(F32x16 a, F32x16 b, F32x16 c) { return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)}; }
// Max is a > b ? a : b, and Min is a < b ? a : b, so both give b if either operand is NaN.
inline F32x16 Max(F32x16 a, F32x16 b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
inline F32x16 Min(F32x16 a, F32x16 b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }
inline F32x16 Abs(F32x16 a) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_andnot_ps(sign, a.lo), _mm256_andnot_ps(sign, a.hi)};
}
// x < limit ? then : otherwise
inline F32x16 SelectLess(F32x16 x, F32x16 limit, F32x16 then, F32x16 otherwise) {
  return {_mm256_blendv_ps(otherwise.lo, then.lo, _mm256_cmp_ps(x.lo, limit.lo, _CMP_LT_OQ)),
          _mm256_blendv_ps(otherwise.hi, then.hi, _mm256_cmp_ps(x.hi, limit.hi, _CMP_LT_OQ))};
}
// Bit i is a[i] < b[i]; false if either is NaN.
inline uint32_t LessMask(F32x16 a, F32x16 b) {
  const int lo = _mm256_movemask_ps(_mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ));
  const int hi = _mm256_movemask_ps(_mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ));
  return static_cast<uint32_t>(lo | (hi << 8));
}
// Keeps lanes [begin, end) and sets the others to `other`.
inline F32x16 KeepLanes(F32x16 a, int begin, int end, F32x16 other) {
  const __m256i index = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const __m256i lo_keep =
      _mm256_andnot_si256(_mm256_cmpgt_epi32(_mm256_set1_epi32(begin), index), _mm256_cmpgt_epi32(_mm256_set1_epi32(end), index));
  const __m256i hi_keep =
      _mm256_andnot_si256(_mm256_cmpgt_epi32(_mm256_set1_epi32(begin - 8), index), _mm256_cmpgt_epi32(_mm256_set1_epi32(end - 8), index));
  return {_mm256_blendv_ps(other.lo, a.lo, _mm256_castsi256_ps(lo_keep)), _mm256_blendv_ps(other.hi, a.hi, _mm256_castsi256_ps(hi_keep))};
}
// The number whose exponent is the low bits of `shifted` (core/scalar_math.h, ExpF32).
inline __m256 PowerOfTwo(__m256 shifted) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(shifted), 23)); }
// The exponent, and the mantissa in [1, 2), of a positive, normal, finite number.
inline __m256 ExponentOf(__m256 x) {
  return _mm256_cvtepi32_ps(_mm256_sub_epi32(_mm256_srli_epi32(_mm256_castps_si256(x), 23), _mm256_set1_epi32(127)));
}
inline __m256 MantissaOf(__m256 x) {
  const __m256i fraction = _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(0x007FFFFF));
  return _mm256_castsi256_ps(_mm256_or_si256(fraction, _mm256_set1_epi32(0x3F800000)));
}
inline F32x16 ExponentOf(F32x16 x) { return {ExponentOf(x.lo), ExponentOf(x.hi)}; }
inline F32x16 MantissaOf(F32x16 x) { return {MantissaOf(x.lo), MantissaOf(x.hi)}; }
inline F32x16 PowerOfTwo(F32x16 shifted) { return {PowerOfTwo(shifted.lo), PowerOfTwo(shifted.hi)}; }
// p[lane] = x, for 16 elements at p. All 16 are loaded and stored: a load of all of them soon after need not wait for the store.
inline void SetLane(int8_t* p, int lane, int8_t x) {
  const __m128i index = _mm_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  auto* all = reinterpret_cast<__m128i*>(p);
  const __m128i is_lane = _mm_cmpeq_epi8(index, _mm_set1_epi8(static_cast<int8_t>(lane)));
  _mm_storeu_si128(all, _mm_blendv_epi8(_mm_loadu_si128(all), _mm_set1_epi8(x), is_lane));
}
inline void SetLane(uint16_t* p, int lane, uint16_t x) {
  const __m256i index = _mm256_setr_epi16(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  auto* all = reinterpret_cast<__m256i*>(p);
  const __m256i is_lane = _mm256_cmpeq_epi16(index, _mm256_set1_epi16(static_cast<int16_t>(lane)));
  _mm256_storeu_si256(all, _mm256_blendv_epi8(_mm256_loadu_si256(all), _mm256_set1_epi16(static_cast<int16_t>(x)), is_lane));
}
inline void SetLane(uint32_t* p, int lane, uint32_t x) {
  const __m256i index = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  for (int half = 0; half < 16; half += 8) {
    auto* all = reinterpret_cast<__m256i*>(p + half);
    const __m256i is_lane = _mm256_cmpeq_epi32(index, _mm256_set1_epi32(lane - half));
    _mm256_storeu_si256(all, _mm256_blendv_epi8(_mm256_loadu_si256(all), _mm256_set1_epi32(static_cast<int32_t>(x)), is_lane));
  }
}
// 16 int8 from 16 fp32, rounded to nearest even; values within [-127, 127]. Returns their sum.
inline int32_t StoreInt8(int8_t* p, F32x16 a) {
  const __m256i lo = _mm256_cvtps_epi32(a.lo);
  const __m256i hi = _mm256_cvtps_epi32(a.hi);
  const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(lo, hi), 0xD8);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
  const __m256i sum8 = _mm256_add_epi32(lo, hi);
  __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(sum8), _mm256_extracti128_si256(sum8, 1));
  sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4E));
  sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xB1));
  return _mm_cvtsi128_si32(sum);
}
inline __m256 MaxBits(__m256 a, __m256 b) { return _mm256_castsi256_ps(_mm256_max_epi32(_mm256_castps_si256(a), _mm256_castps_si256(b))); }
// The larger of two values that are not negative, compared by their bits: NaN is the largest.
inline F32x16 MaxBits(F32x16 a, F32x16 b) { return {MaxBits(a.lo, b.lo), MaxBits(a.hi, b.hi)}; }
// Lane i is the MaxBits of all lanes of a[i].
inline F32x16 FoldMaxBits(const F32x16 (&a)[16]) {
  __m256 results[2];
  for (int half = 0; half < 2; ++half) {
    __m256 twos[4], fours[2];
    for (int i = 0; i < 4; ++i) {
      const F32x16& even = a[8 * half + 2 * i];
      const F32x16& odd = a[8 * half + 2 * i + 1];
      const __m256 first = MaxBits(even.lo, even.hi);
      const __m256 second = MaxBits(odd.lo, odd.hi);
      twos[i] = MaxBits(_mm256_unpacklo_ps(first, second), _mm256_unpackhi_ps(first, second));
    }
    for (int i = 0; i < 2; ++i) {
      const __m256d even = _mm256_castps_pd(twos[2 * i]);
      const __m256d odd = _mm256_castps_pd(twos[2 * i + 1]);
      fours[i] = MaxBits(_mm256_castpd_ps(_mm256_unpacklo_pd(even, odd)), _mm256_castpd_ps(_mm256_unpackhi_pd(even, odd)));
    }
    results[half] = MaxBits(_mm256_permute2f128_ps(fours[0], fours[1], 0x20), _mm256_permute2f128_ps(fours[0], fours[1], 0x31));
  }
  return {results[0], results[1]};
}
// hadd's quarters in order.
inline __m256 InOrder(__m256 a) { return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(a), 0xD8)); }
// The sums of neighbouring lanes: first a's eight, then b's.
inline F32x16 AddPairs(F32x16 a, F32x16 b) { return {InOrder(_mm256_hadd_ps(a.lo, a.hi)), InOrder(_mm256_hadd_ps(b.lo, b.hi))}; }
// The 16 sums of 16 codes each: stored as integers at `sums`, and returned as floats.
inline F32x16 StoreSumsOfCodes(const int8_t* codes, int32_t* sums) {
  __m256i results[2];
  for (int half = 0; half < 2; ++half) {
    __m256i eights[4];
    for (int i = 0; i < 4; ++i) {
      const __m256i loaded = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes + 128 * half + 32 * i));
      eights[i] = _mm256_sad_epu8(_mm256_xor_si256(loaded, _mm256_set1_epi8(-128)), _mm256_setzero_si256());
    }
    const auto add_neighbours = [](__m256i a, __m256i b) {
      return _mm256_add_epi64(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b));
    };
    const __m256i low = add_neighbours(eights[0], eights[1]);  // sums 0 2 1 3
    const __m256i high = add_neighbours(eights[2], eights[3]);
    const __m256i both = _mm256_or_si256(low, _mm256_slli_epi64(high, 32));
    const __m256i order = _mm256_setr_epi32(0, 4, 2, 6, 1, 5, 3, 7);
    results[half] = _mm256_sub_epi32(_mm256_permutevar8x32_epi32(both, order), _mm256_set1_epi32(16 * 128));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(sums + 8 * half), results[half]);
  }
  return {_mm256_cvtepi32_ps(results[0]), _mm256_cvtepi32_ps(results[1])};
}
// 16 uint64 from 16 fp32 in [0, 2^63), rounded to nearest even.
inline void StoreUint64(uint64_t* p, F32x16 a) {
  float values[16];
  Store(values, a);
  for (int i = 0; i < 16; ++i) {
    const float x = values[i];
    p[i] = static_cast<uint64_t>(static_cast<int64_t>(x < 0x1p23f ? (x + 0x1p23f) - 0x1p23f : x));
  }
}

// 16 doubles.
struct F64x16 {
  __m256d v[4];
};

inline F64x16 SetD(double x) { return {{_mm256_set1_pd(x), _mm256_set1_pd(x), _mm256_set1_pd(x), _mm256_set1_pd(x)}}; }
inline F64x16 LoadD(const double* p) {
  return {{_mm256_loadu_pd(p), _mm256_loadu_pd(p + 4), _mm256_loadu_pd(p + 8), _mm256_loadu_pd(p + 12)}};
}
inline void StoreD(double* p, F64x16 a) {
  for (int i = 0; i < 4; ++i) _mm256_storeu_pd(p + 4 * i, a.v[i]);
}
inline F64x16 ToDouble(F32x16 a) {
  return {{_mm256_cvtps_pd(_mm256_castps256_ps128(a.lo)), _mm256_cvtps_pd(_mm256_extractf128_ps(a.lo, 1)),
           _mm256_cvtps_pd(_mm256_castps256_ps128(a.hi)), _mm256_cvtps_pd(_mm256_extractf128_ps(a.hi, 1))}};
}
inline F64x16 AddD(F64x16 a, F64x16 b) {
  for (int i = 0; i < 4; ++i) a.v[i] = _mm256_add_pd(a.v[i], b.v[i]);
  return a;
}
inline F64x16 SubD(F64x16 a, F64x16 b) {
  for (int i = 0; i < 4; ++i) a.v[i] = _mm256_sub_pd(a.v[i], b.v[i]);
  return a;
}
inline F64x16 MulD(F64x16 a, F64x16 b) {
  for (int i = 0; i < 4; ++i) a.v[i] = _mm256_mul_pd(a.v[i], b.v[i]);
  return a;
}

struct U32x16 {
  __m256i lo, hi;
};

inline U32x16 SetU(uint32_t x) { return {_mm256_set1_epi32(static_cast<int32_t>(x)), _mm256_set1_epi32(static_cast<int32_t>(x))}; }
inline U32x16 LoadU(const uint32_t* p) {
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)), _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 8))};
}
inline void StoreU(uint32_t* p, U32x16 a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), a.lo);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 8), a.hi);
}
inline U32x16 Xor(U32x16 a, U32x16 b) { return {_mm256_xor_si256(a.lo, b.lo), _mm256_xor_si256(a.hi, b.hi)}; }
inline U32x16 AddU(U32x16 a, U32x16 b) { return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)}; }
inline __m256i MulWide(__m256i a, __m256i b, __m256i* high) {
  const __m256i even = _mm256_mul_epu32(a, b);
  const __m256i odd = _mm256_mul_epu32(_mm256_srli_epi64(a, 32), _mm256_srli_epi64(b, 32));
  *high = _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xAA);
  return _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xAA);
}
// The low and high words of a[i] b[i].
inline U32x16 MulWide(U32x16 a, U32x16 b, U32x16* high) { return {MulWide(a.lo, b.lo, &high->lo), MulWide(a.hi, b.hi, &high->hi)}; }
// floor(a / 256) 2^-24, exact.
inline F32x16 UnitFloat(U32x16 a) {
  const __m256 unit = _mm256_set1_ps(0x1p-24f);
  return {_mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_srli_epi32(a.lo, 8)), unit),
          _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_srli_epi32(a.hi, 8)), unit)};
}

}  // namespace

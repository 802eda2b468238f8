// max_chunk, race_candidates, softmax_chunk, token_masses, mass_moments, divergence_chunk and ids_from over 16 lanes: a row of logits.
// Contracts: kernels/ops/vocab.h, kernels/draws/exponential_race.h; definitions: kernels/cpu/reference/vocab.cc.
#pragma once

namespace llmi::LLMI_ISA_NAMESPACE {
namespace {

// Ten rounds of Philox4x32 (core/philox.h) for 16 counters that differ in their first word.
void Philox16(U32x16 counter0, const RaceNoise& noise, U32x16* words) {
  U32x16 c0 = counter0;
  U32x16 c1 = SetU(noise.position);
  U32x16 c2 = SetU(noise.sample_index);
  U32x16 c3 = SetU(noise.purpose);
  uint32_t key0 = static_cast<uint32_t>(noise.seed);
  uint32_t key1 = static_cast<uint32_t>(noise.seed >> 32);
  const U32x16 multiplier0 = SetU(0xD2511F53u);
  const U32x16 multiplier1 = SetU(0xCD9E8D57u);
  for (int round = 0; round < 10; ++round) {
    U32x16 high0;
    U32x16 high1;
    const U32x16 low0 = MulWide(c0, multiplier0, &high0);
    const U32x16 low1 = MulWide(c2, multiplier1, &high1);
    c0 = Xor(Xor(high1, c1), SetU(key0));
    c1 = low1;
    c2 = Xor(Xor(high0, c3), SetU(key1));
    c3 = low0;
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  words[0] = c0;
  words[1] = c1;
  words[2] = c2;
  words[3] = c3;
}

}  // namespace

void max_chunk(const float* x, int64_t size, float* maximum, bool* all_below_infinity) {
  if (size % 16 != 0) {
    reference::max_chunk(x, size, maximum, all_below_infinity);
    return;
  }
  const F32x16 infinity = Set1(__builtin_inff());
  F32x16 peaks = Set1(-__builtin_inff());
  uint32_t below = 0xFFFF;
  for (int64_t i = 0; i < size; i += 16) {
    const F32x16 values = Load(x + i);
    peaks = Max(values, peaks);
    below &= LessMask(values, infinity);
  }
  *maximum = FoldMax(peaks);
  *all_below_infinity = below == 0xFFFF;
}

void race_candidates(const RaceArgs& race, int32_t* ids, int64_t* count) {
  constexpr int64_t kIds = 64;  // 16 counters of four words
  constexpr uint32_t kLanes[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  const F32x16 limit = Set1(race.limit);
  const int64_t end = race.first_id + race.size;
  int64_t found = 0;
  int64_t first = race.first_id;
  for (; first + kIds <= end; first += kIds) {
    const float* law = race.law + first;
    const F32x16 largest = Max(Max(Load(law), Load(law + 16)), Max(Load(law + 32), Load(law + 48)));
    if (LessMask(Set1(-__builtin_inff()), largest) == 0) continue;  // all are cut
    U32x16 words[4];
    Philox16(AddU(LoadU(kLanes), SetU(static_cast<uint32_t>(first / 4))), race.noise, words);
    uint32_t by_word[4][16];
    uint32_t by_id[kIds];
    for (int word = 0; word < 4; ++word) StoreU(by_word[word], words[word]);
    for (int id = 0; id < kIds; ++id) by_id[id] = by_word[id % 4][id / 4];
    for (int64_t i = 0; i < kIds; i += 16) {
      const F32x16 chance = Mul(Exp(Add(limit, Load(law + i))), Set1(1.001f));
      for (uint32_t mask = LessMask(UnitFloat(LoadU(by_id + i)), chance); mask != 0; mask &= mask - 1) {
        ids[found++] = static_cast<int32_t>(first + i + __builtin_ctz(mask));
      }
    }
  }
  int64_t rest = 0;
  if (first < end) {
    RaceArgs tail = race;
    tail.first_id = first;
    tail.size = end - first;
    reference::race_candidates(tail, ids + found, &rest);
  }
  *count = found + rest;
}

void softmax_chunk(const float* logits, int64_t size, float* maximum, float* sum) {
  if (size % 16 != 0) {
    reference::softmax_chunk(logits, size, maximum, sum);
    return;
  }
  F32x16 peaks = Set1(-__builtin_inff());
  for (int64_t i = 0; i < size; i += 16) peaks = Max(Load(logits + i), peaks);
  const float peak = FoldMax(peaks);
  if (!(peak > -__builtin_inff())) {
    reference::softmax_chunk(logits, size, maximum, sum);
    return;
  }
  F32x16 lanes = Zero();
  for (int64_t i = 0; i < size; i += 16) lanes = Add(lanes, Exp(Sub(Load(logits + i), Set1(peak))));
  *maximum = peak;
  *sum = FoldSum(lanes);
}

void token_masses(const float* logits, int64_t size, float maximum, uint64_t* masses) {
  int64_t i = 0;
  for (; i + 16 <= size; i += 16) StoreUint64(masses + i, Mul(Exp(Sub(Load(logits + i), Set1(maximum))), Set1(0x1p40f)));
  if (i < size) reference::token_masses(logits + i, size - i, maximum, masses + i);
}

// Sixteen values that have no mass add zeros to lanes that are not -0: they are left out.
void mass_moments(const float* logits, int64_t size, float maximum, double* masses, double* products) {
  const F32x16 least = Set1(maximum - 29.0f);  // exp(-29) 2^40 < 1/2
  const F32x16 round = Set1(0x1p23f);
  const F64x16 peak = SetD(static_cast<double>(maximum));
  F64x16 mass_sums = LoadD(masses);
  F64x16 product_sums = LoadD(products);
  int64_t i = 0;
  for (; i + 16 <= size; i += 16) {
    const F32x16 x = Load(logits + i);
    if (LessMask(least, x) == 0) continue;
    const F32x16 scaled = Mul(Exp(Sub(x, Set1(maximum))), Set1(0x1p40f));
    const F64x16 mass = ToDouble(SelectLess(scaled, round, Sub(Add(scaled, round), round), scaled));
    const F64x16 offset = SubD(ToDouble(Max(x, Set1(-0x1.fffffep127f))), peak);
    mass_sums = AddD(mass_sums, mass);
    product_sums = AddD(product_sums, MulD(mass, offset));
  }
  StoreD(masses, mass_sums);
  StoreD(products, product_sums);
  if (i < size) reference::mass_moments(logits + i, size - i, maximum, masses, products);
}

void divergence_chunk(const float* a, const float* b, int64_t size, bool of_mean, float* sum) {
  if (size % 16 != 0) {
    reference::divergence_chunk(a, b, size, of_mean, sum);
    return;
  }
  F32x16 lanes = Zero();
  for (int64_t i = 0; i < size; i += 16) {
    const F32x16 log_p = Load(a + i);
    const F32x16 log_q = Load(b + i);
    const F32x16 p = Exp(log_p);
    const F32x16 q = Exp(log_q);
    const F32x16 mean = Mul(Add(p, q), Set1(0.5f));
    const F32x16 log_mean = Log(Max(mean, Set1(llmi::kLeastNormal)));
    if (of_mean) {
      lanes = Add(lanes, Mul(mean, Add(Sub(log_mean, log_p), Sub(log_mean, log_q))));
    } else {
      lanes = Add(lanes, Fma(q, Sub(log_q, log_mean), Mul(p, Sub(log_p, log_mean))));
    }
  }
  *sum = FoldSum(lanes);
}

void ids_from(const float* x, int64_t size, float least, int32_t* ids, int64_t* count) {
  const F32x16 limit = Set1(least);
  int64_t found = 0;
  int64_t i = 0;
  for (; i + 16 <= size; i += 16) {
    for (uint32_t mask = ~LessMask(Load(x + i), limit) & 0xFFFF; mask != 0; mask &= mask - 1) {
      ids[found++] = static_cast<int32_t>(i + __builtin_ctz(mask));
    }
  }
  for (; i < size; ++i) {
    if (!(x[i] < least)) ids[found++] = static_cast<int32_t>(i);
  }
  *count = found;
}

}  // namespace llmi::LLMI_ISA_NAMESPACE

#include "sampling/law.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <mutex>
#include <utility>
#include <vector>

#include "core/errors.h"
#include "kernels/dispatch/kernel_table.h"
#include "kernels/dispatch/row_tasks.h"
#include "kernels/ops/vocab.h"
#include "sampling/edits.h"

namespace llmi {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

void KeepAllowed(const std::vector<int32_t>& allowed_token_ids, float* logits, int64_t vocab_size) {
  if (allowed_token_ids.empty()) return;
  std::vector<bool> allowed(static_cast<size_t>(vocab_size), false);
  for (int32_t id : allowed_token_ids) allowed[static_cast<size_t>(id)] = true;
  for (int64_t id = 0; id < vocab_size; ++id) {
    if (!allowed[static_cast<size_t>(id)]) logits[id] = kMinusInfinity;
  }
}

// The order in which tokens of a law rank.
struct ByRank {
  const float* law;
  bool operator()(int32_t a, int32_t b) const { return law[a] > law[b] || (law[a] == law[b] && a < b); }
};

// Keeps the first top_k tokens by rank. One pass, which skips every token below the k-th best found so far.
void KeepTopK(int64_t top_k, float* law, int64_t vocab_size) {
  const auto kept = static_cast<size_t>(top_k);
  std::vector<int32_t> ids;
  float limit = kMinusInfinity;
  const auto cut = [&] {
    std::nth_element(ids.begin(), ids.begin() + top_k - 1, ids.end(), ByRank{law});
    ids.resize(kept);
    limit = law[ids.back()];  // the k-th best so far: a later id with the same value ranks after it
  };
  for (int64_t i = 0; i < vocab_size; ++i) {
    if (!(law[i] > limit)) continue;
    ids.push_back(static_cast<int32_t>(i));
    if (ids.size() == 4 * kept + 64) cut();
  }
  if (ids.size() > kept) cut();
  std::vector<float> values(ids.size());
  for (size_t i = 0; i < ids.size(); ++i) values[i] = law[ids[i]];
  std::fill(law, law + vocab_size, kMinusInfinity);
  for (size_t i = 0; i < ids.size(); ++i) law[ids[i]] = values[i];
}

int MassBucket(uint64_t mass) { return static_cast<int>(std::bit_width(mass)); }  // 0: no mass

// Keeps the shortest ranked prefix whose integer mass reaches top_p of the total. A better rank never has a smaller mass, so tokens are
// first sorted into buckets by the power of two of their mass; ranks matter only inside the bucket in which the sum is reached.
void KeepTopP(const KernelContext& context, double top_p, float maximum, float* law, int64_t vocab_size) {
  thread_local std::vector<uint64_t> masses;
  masses.resize(static_cast<size_t>(vocab_size));
  TokenMasses(context, law, vocab_size, maximum, masses.data());
  std::array<uint64_t, 65> sums{};
  for (uint64_t mass : masses) sums[static_cast<size_t>(MassBucket(mass))] += mass;
  uint64_t total = 0;
  for (uint64_t sum : sums) total += sum;
  const uint64_t wanted = WantedMass(top_p, total);
  int bucket = 64;
  uint64_t sum = 0;
  for (; bucket > 1 && sum + sums[static_cast<size_t>(bucket)] < wanted; --bucket) sum += sums[static_cast<size_t>(bucket)];
  std::vector<int32_t> order;
  for (int64_t i = 0; i < vocab_size; ++i) {
    const int own = MassBucket(masses[static_cast<size_t>(i)]);
    if (own == bucket) order.push_back(static_cast<int32_t>(i));
    if (own < bucket) law[i] = kMinusInfinity;
  }
  // Ranks are sorted piece by piece, since usually few are needed.
  size_t sorted = 0;
  size_t count = 0;
  for (size_t piece = 64; count < order.size() && sum < wanted; piece *= 8) {
    const size_t end = std::min(order.size(), sorted + piece);
    std::partial_sort(order.begin() + static_cast<int64_t>(sorted), order.begin() + static_cast<int64_t>(end), order.end(), ByRank{law});
    for (; count < end && sum < wanted; ++count) sum += masses[static_cast<size_t>(order[count])];
    sorted = end;
  }
  for (size_t i = count; i < order.size(); ++i) law[order[i]] = kMinusInfinity;
}

void Filter(const KernelContext& context, const SamplingParams& params, float* law, int64_t vocab_size, float maximum) {
  if (params.min_p > 0) {
    const float limit = MinPLimit(maximum, params.min_p);
    for (int64_t i = 0; i < vocab_size; ++i) {
      if (law[i] < limit) law[i] = kMinusInfinity;
    }
  }
  if (params.top_k > 0 && params.top_k < vocab_size) KeepTopK(params.top_k, law, vocab_size);
  if (params.top_p < 1.0) KeepTopP(context, params.top_p, maximum, law, vocab_size);
}

}  // namespace

void PenaliseLogits(const KernelContext& context, const SamplingParams& params, const TokenHistory& history, float* logits,
                    int64_t vocab_size, const LawObserver& observer) {
  if (ArgMax(context, logits, vocab_size) < 0) {
    throw Error(ErrorKind::kNonFiniteLogits,
                "the model's logits hold NaN or infinity at position " + std::to_string(history.token_ids.size()));
  }
  thread_local std::vector<MaskEdit> masks;
  masks.clear();
  AppendMasks(params, history, &masks);
  KeepAllowed(params.allowed_token_ids, logits, vocab_size);
  for (const MaskEdit& edit : masks) logits[edit.id] = MaskedLogit(edit, logits[edit.id]);
  if (observer) observer(LawStage::kMasked, logits);
  thread_local std::vector<PenaltyEdit> penalised;
  penalised.clear();
  AppendPenalties(params, history, vocab_size, &penalised);
  const Penalties penalties = PenaltiesOf(params);
  for (const PenaltyEdit& edit : penalised) logits[edit.id] = PenalisedLogit(edit, penalties, logits[edit.id]);
  if (observer) observer(LawStage::kPenalised, logits);
}

void ProcessLogits(const KernelContext& context, const SamplingParams& params, const TokenHistory& history, const LogitsHook& hook,
                   float* logits, int64_t vocab_size, const LawObserver& observer) {
  PenaliseLogits(context, params, history, logits, vocab_size, observer);
  if (hook) hook(logits);
  FilterLogits(context, params, history, logits, vocab_size, observer);
}

void FilterLogits(const KernelContext& context, const SamplingParams& params, const TokenHistory& history, float* logits,
                  int64_t vocab_size, const LawObserver& observer) {
  if (observer) observer(LawStage::kProcessed, logits);
  const int64_t best = ArgMax(context, logits, vocab_size);
  if (best < 0) {
    throw Error(ErrorKind::kNonFiniteLogits, "no token is left to draw at position " + std::to_string(history.token_ids.size()) +
                                                 ": masks, biases or processors made every logit -inf, or one NaN or +inf");
  }
  if (params.greedy()) return;
  const auto temperature = static_cast<float>(params.temperature);
  if (temperature != 1.0f) {
    for (int64_t i = 0; i < vocab_size; ++i) logits[i] = logits[i] / temperature;
  }
  if (observer) observer(LawStage::kTempered, logits);
  if (std::isinf(logits[best])) {
    throw Error(ErrorKind::kNonFiniteLogits, "temperature " + std::to_string(params.temperature) + " makes a logit infinite",
                "temperature");
  }
  Filter(context, params, logits, vocab_size, logits[best]);
}

RaceNoise NoiseOf(const NoiseKey& key) {
  return {key.seed, static_cast<uint32_t>(key.position), static_cast<uint32_t>(key.sample_index), key.purpose | (key.round << 8)};
}

uint32_t NoiseWord(const NoiseKey& key, int64_t token_id) { return RaceWords(NoiseOf(key), token_id / 4)[token_id % 4]; }

double LogExponential(const NoiseKey& key, int64_t token_id) { return RaceScore(NoiseWord(key, token_id), 0.0f); }

int32_t Draw(const KernelContext& context, const NoiseKey& key, const float* law, int64_t vocab_size) {
  using Runner = std::pair<double, int64_t>;  // score, id; the least pair wins
  const auto score = [&](int64_t id) { return Runner{RaceScore(NoiseWord(key, id), law[id]), id}; };
  // The likeliest token is scored first: its score lets the loop skip nearly all others.
  const int64_t likeliest = ArgMax(context, law, vocab_size);
  CheckInternal(likeliest >= 0, "draw: the law holds NaN or infinity, or keeps no token");
  Runner winner = score(likeliest);
  const RaceNoise noise = NoiseOf(key);
  const int64_t num_chunks = (vocab_size + kVocabChunk - 1) / kVocabChunk;
  std::mutex mutex;
  const Runner favourite = winner;
  ParallelRows(context, num_chunks, 4, [&](int64_t begin, int64_t end) {
    Runner best = favourite;
    std::vector<int32_t> ids(kVocabChunk);
    for (int64_t chunk = begin; chunk < end; ++chunk) {
      const int64_t first = chunk * kVocabChunk;
      int64_t count = 0;
      context.table->race_candidates({noise, law, first, std::min(kVocabChunk, vocab_size - first), static_cast<float>(best.first)},
                                     ids.data(), &count);
      for (int64_t i = 0; i < count; ++i) best = std::min(best, score(ids[static_cast<size_t>(i)]));
    }
    const std::lock_guard lock(mutex);
    winner = std::min(winner, best);
  });
  return static_cast<int32_t>(winner.second);
}

int32_t DrawToken(const KernelContext& context, const SamplingParams& params, int64_t position, int64_t sample_index,
                  std::span<const float> law) {
  const auto vocab_size = static_cast<int64_t>(law.size());
  if (params.greedy()) return static_cast<int32_t>(ArgMax(context, law.data(), vocab_size));
  return Draw(context, {params.seed, position, sample_index, 0, 0}, law.data(), vocab_size);
}

std::vector<int32_t> DrawSeveral(const NoiseKey* key, const float* law, int64_t vocab_size, int64_t count) {
  std::vector<std::pair<double, int32_t>> scores;
  for (int64_t id = 0; id < vocab_size; ++id) {
    if (!(law[id] > kMinusInfinity)) continue;
    const double score = key == nullptr ? -static_cast<double>(law[id]) : RaceScore(NoiseWord(*key, id), law[id]);
    scores.emplace_back(score, static_cast<int32_t>(id));
  }
  const auto kept = std::min(static_cast<size_t>(std::max<int64_t>(count, 0)), scores.size());
  std::partial_sort(scores.begin(), scores.begin() + static_cast<int64_t>(kept), scores.end());
  std::vector<int32_t> ids;
  for (size_t i = 0; i < kept; ++i) ids.push_back(scores[i].second);
  return ids;
}

}  // namespace llmi

#include "sampling/law.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/errors.h"
#include "core/philox.h"
#include "core/scalar_math.h"
#include "kernels/vocab.h"

namespace llmi {
namespace {

constexpr double kMaxV = 1.0 - 0x1p-24;  // log(1 - v) stays finite
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

bool EndsWith(std::span<const int32_t> tokens, std::span<const int32_t> suffix) {
  return suffix.size() <= tokens.size() && std::equal(suffix.begin(), suffix.end(), tokens.end() - static_cast<int64_t>(suffix.size()));
}

void ApplyMasks(const SamplingParams& params, const TokenHistory& history, float* logits, int64_t vocab_size) {
  if (!params.allowed_token_ids.empty()) {
    std::vector<bool> allowed(static_cast<size_t>(vocab_size), false);
    for (int32_t id : params.allowed_token_ids) allowed[static_cast<size_t>(id)] = true;
    for (int64_t id = 0; id < vocab_size; ++id) {
      if (!allowed[static_cast<size_t>(id)]) logits[id] = kMinusInfinity;
    }
  }
  const std::span<const int32_t> output = history.token_ids.subspan(static_cast<size_t>(history.prompt_len));
  for (const std::vector<int32_t>& word : params.bad_words) {
    // A word is banned at its last token, when its beginning has just been written.
    if (EndsWith(output, std::span(word).first(word.size() - 1))) logits[word.back()] = kMinusInfinity;
  }
  if (static_cast<int64_t>(output.size()) < params.min_tokens) {
    for (int32_t id : params.stop_token_ids) logits[id] = kMinusInfinity;
    for (int32_t id : params.eos_token_ids) logits[id] = kMinusInfinity;
  }
}

void ApplyPenalties(const SamplingParams& params, const TokenHistory& history, float* logits) {
  const bool repetition = params.repetition_penalty != 1.0;
  const bool counting = params.frequency_penalty != 0.0 || params.presence_penalty != 0.0;
  if (!repetition && !counting) return;
  std::unordered_map<int32_t, int64_t> output_counts;  // 0: in the prompt only
  for (size_t i = 0; i < history.token_ids.size(); ++i) {
    output_counts[history.token_ids[i]] += static_cast<int64_t>(i) >= history.prompt_len ? 1 : 0;
  }
  const auto factor = static_cast<float>(params.repetition_penalty);
  const auto frequency = static_cast<float>(params.frequency_penalty);
  const auto presence = static_cast<float>(params.presence_penalty);
  for (const auto& [id, count] : output_counts) {
    float& logit = logits[id];
    if (repetition) logit = logit > 0 ? logit / factor : logit * factor;
    if (count > 0) {
      logit = logit - frequency * static_cast<float>(count);
      logit = logit - presence;
    }
  }
}

// Ranking order of the law.
struct ByRank {
  const float* law;
  bool operator()(int32_t a, int32_t b) const { return law[a] > law[b] || (law[a] == law[b] && a < b); }
};

// Keeps the shortest ranked prefix of `kept` whose integer mass reaches top_p of the whole.
void KeepTopP(const KernelContext& context, double top_p, float maximum, const float* law, std::vector<int32_t>* kept) {
  std::vector<float> values(kept->size());
  for (size_t i = 0; i < kept->size(); ++i) values[i] = law[(*kept)[i]];
  std::vector<uint64_t> masses(kept->size());
  TokenMasses(context, values.data(), static_cast<int64_t>(values.size()), maximum, masses.data());
  uint64_t total = 0;
  for (uint64_t mass : masses) total += mass;
  const double wanted_mass = std::ceil(top_p * static_cast<double>(total));
  const auto wanted = static_cast<uint64_t>(wanted_mass);
  // Ranks are sorted piece by piece: most laws reach top_p within a few dozen tokens.
  std::vector<int32_t> order(kept->size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
  const ByRank by_value{values.data()};
  // Positions in `kept` ascend with ids as long as ids do; ties then fall to the lowest id.
  size_t sorted = 0;
  uint64_t sum = 0;
  size_t count = 0;
  for (size_t piece = 64; count < order.size() && sum < wanted; piece *= 8) {
    const size_t end = std::min(order.size(), sorted + piece);
    std::partial_sort(order.begin() + static_cast<int64_t>(sorted), order.begin() + static_cast<int64_t>(end), order.end(), by_value);
    for (; count < end && sum < wanted; ++count) sum += masses[static_cast<size_t>(order[count])];
    sorted = end;
  }
  std::vector<int32_t> result;
  for (size_t i = 0; i < std::max<size_t>(count, 1); ++i) result.push_back((*kept)[static_cast<size_t>(order[i])]);
  *kept = std::move(result);
}

void Filter(const KernelContext& context, const SamplingParams& params, float* law, int64_t vocab_size, float maximum) {
  const bool top_k = params.top_k > 0 && params.top_k < vocab_size;
  const bool top_p = params.top_p < 1.0;
  if (params.min_p > 0) {
    const auto limit = static_cast<float>(static_cast<double>(maximum) + LogF64(params.min_p));
    for (int64_t i = 0; i < vocab_size; ++i) {
      if (law[i] < limit) law[i] = kMinusInfinity;
    }
  }
  if (!top_k && !top_p) return;
  std::vector<int32_t> kept;
  for (int64_t i = 0; i < vocab_size; ++i) {
    if (law[i] > kMinusInfinity) kept.push_back(static_cast<int32_t>(i));
  }
  if (top_k && params.top_k < static_cast<int64_t>(kept.size())) {
    std::nth_element(kept.begin(), kept.begin() + params.top_k - 1, kept.end(), ByRank{law});
    kept.resize(static_cast<size_t>(params.top_k));
    std::sort(kept.begin(), kept.end());
  }
  if (top_p) KeepTopP(context, params.top_p, maximum, law, &kept);
  std::vector<float> values(kept.size());
  for (size_t i = 0; i < kept.size(); ++i) values[i] = law[kept[i]];
  std::fill(law, law + vocab_size, kMinusInfinity);
  for (size_t i = 0; i < kept.size(); ++i) law[kept[i]] = values[i];
}

double Uniform(uint32_t word) { return std::min((static_cast<double>(word) + 0.5) * 0x1p-32, kMaxV); }

double Score(double v, float law) { return LogF64(-Log1pF64(-v)) - static_cast<double>(law); }

}  // namespace

void PenaliseLogits(const KernelContext& context, const SamplingParams& params, const TokenHistory& history, float* logits,
                    int64_t vocab_size, const LawObserver& observer) {
  if (ArgMax(context, logits, vocab_size) < 0) {
    throw Error(ErrorKind::kNonFiniteLogits,
                "the model's logits hold NaN or infinity at position " + std::to_string(history.token_ids.size()));
  }
  ApplyMasks(params, history, logits, vocab_size);
  for (const auto& [id, bias] : params.logit_bias) logits[id] = logits[id] + bias;
  if (observer) observer(LawStage::kMasked, logits);
  ApplyPenalties(params, history, logits);
  if (observer) observer(LawStage::kPenalised, logits);
}

void ProcessLogits(const KernelContext& context, const SamplingParams& params, const TokenHistory& history, const LogitsHook& hook,
                   float* logits, int64_t vocab_size, const LawObserver& observer) {
  PenaliseLogits(context, params, history, logits, vocab_size, observer);
  if (hook) hook(logits);
  if (observer) observer(LawStage::kProcessed, logits);
  const int64_t best = ArgMax(context, logits, vocab_size);
  if (best < 0) {
    throw Error(ErrorKind::kNonFiniteLogits, "no token is left to draw at position " + std::to_string(history.token_ids.size()) +
                                                 ": masks, biases or processors made every logit -inf, or one NaN or +inf");
  }
  if (params.temperature == 0) return;
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

uint32_t NoiseWord(const NoiseKey& key, int64_t token_id) {
  const auto words = Philox4x32({static_cast<uint32_t>(token_id / 4), static_cast<uint32_t>(key.position),
                                 static_cast<uint32_t>(key.sample_index), key.purpose | (key.round << 8)},
                                key.seed);
  return words[static_cast<size_t>(token_id % 4)];
}

double LogExponential(const NoiseKey& key, int64_t token_id) { return Score(Uniform(NoiseWord(key, token_id)), 0.0f); }

int32_t Draw(const NoiseKey& key, const float* law, int64_t vocab_size) {
  int64_t best_id = -1;
  double best = std::numeric_limits<double>::infinity();
  const auto consider = [&](int64_t id, double v) {
    const double score = Score(v, law[id]);
    if (score < best || (score == best && id < best_id)) {
      best = score;
      best_id = id;
    }
  };
  // The likeliest token first: its score lets nearly all others be passed over.
  const int64_t likeliest = std::max_element(law, law + vocab_size) - law;
  consider(likeliest, Uniform(NoiseWord(key, likeliest)));
  for (int64_t group = 0; group * 4 < vocab_size; ++group) {
    const int64_t end = std::min<int64_t>(4, vocab_size - group * 4);
    bool any = false;
    for (int64_t i = 0; i < end; ++i) any = any || law[group * 4 + i] > kMinusInfinity;
    if (!any) continue;
    const auto words = Philox4x32({static_cast<uint32_t>(group), static_cast<uint32_t>(key.position),
                                   static_cast<uint32_t>(key.sample_index), key.purpose | (key.round << 8)},
                                  key.seed);
    for (int64_t i = 0; i < end; ++i) {
      const int64_t id = group * 4 + i;
      if (!(law[id] > kMinusInfinity) || id == likeliest) continue;
      const double v = Uniform(words[static_cast<size_t>(i)]);
      // E >= v, so the token can win only if v < exp(best + law); 1.001 covers the fp32 exponential.
      const auto exponent = static_cast<float>(best + static_cast<double>(law[id]));
      if (exponent < 0.0f && v > static_cast<double>(ExpF32(exponent)) * 1.001) continue;
      consider(id, v);
    }
  }
  return static_cast<int32_t>(best_id);
}

std::vector<int32_t> DrawSeveral(const NoiseKey* key, const float* law, int64_t vocab_size, int64_t count) {
  std::vector<std::pair<double, int32_t>> scores;
  for (int64_t id = 0; id < vocab_size; ++id) {
    if (!(law[id] > kMinusInfinity)) continue;
    const double score = key == nullptr ? -static_cast<double>(law[id]) : Score(Uniform(NoiseWord(*key, id)), law[id]);
    scores.emplace_back(score, static_cast<int32_t>(id));
  }
  const auto kept = std::min(static_cast<size_t>(std::max<int64_t>(count, 0)), scores.size());
  std::partial_sort(scores.begin(), scores.begin() + static_cast<int64_t>(kept), scores.end());
  std::vector<int32_t> ids;
  for (size_t i = 0; i < kept; ++i) ids.push_back(scores[i].second);
  return ids;
}

}  // namespace llmi

#include "engine/drafting/draft_choice.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "core/errors.h"
#include "core/scalar_math.h"
#include "kernels/ops/vocab.h"
#include "sampling/edits.h"
#include "sampling/law.h"
#include "speculative/likeliest.h"

namespace llmi {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// Whether the next token is the likeliest of the head's row itself, where min_tokens bans none.
bool IsPlainGreedy(const SamplingParams& params) { return params.has_point_law() && !HasEdits(params, false); }

// The law [vocab_size] of the next token; empty if no listed token may come.
std::vector<float> LawOf(const KernelContext& host, const DraftChoice& choice, std::span<const int32_t> listed,
                         std::span<const float> logits, int64_t vocab_size) {
  std::vector<float> law(static_cast<size_t>(vocab_size), kMinusInfinity);
  for (size_t i = 0; i < logits.size(); ++i) law[listed.empty() ? i : static_cast<size_t>(listed[i])] = logits[i];
  const TokenHistory history = {choice.token_ids, choice.prompt_len, choice.rank, choice.sampler};
  try {
    ProcessLogits(host, choice.params, history, nullptr, law.data(), vocab_size);
  } catch (const Error&) {
    return {};
  }
  if (ArgMax(host, law.data(), vocab_size) < 0) return {};
  return law;
}

// The probabilities of a law without some of its tokens.
std::vector<float> ProbsOf(const KernelContext& host, std::vector<float> law, std::span<const int32_t> without) {
  for (int32_t id : without) law[static_cast<size_t>(id)] = kMinusInfinity;
  const float total = LogSumExp(host, law.data(), static_cast<int64_t>(law.size()));
  for (float& value : law) value = ExpF32(value - total);
  return law;
}

// As DrawSeveral, by the op that draws one: faster for a few. law: keeps some token.
std::vector<int32_t> DrawOneByOne(const KernelContext& host, const NoiseKey& key, const std::vector<float>& law, int64_t count) {
  const auto vocab_size = static_cast<int64_t>(law.size());
  std::vector<int32_t> token_ids = {Draw(host, key, law.data(), vocab_size)};
  if (count == 1) return token_ids;
  std::vector<float> left = law;
  while (static_cast<int64_t>(token_ids.size()) < count) {
    left[static_cast<size_t>(token_ids.back())] = kMinusInfinity;
    if (ArgMax(host, left.data(), vocab_size) < 0) break;
    token_ids.push_back(Draw(host, key, left.data(), vocab_size));
  }
  return token_ids;
}

// The first `count` tokens of the head's row itself.
DraftChoices ChooseLikeliest(const KernelContext& host, const DraftChoice& choice, std::span<const int32_t> listed,
                             std::span<const float> logits, int64_t count) {
  DraftChoices chosen;
  const auto size = static_cast<int64_t>(logits.size());
  std::vector<int32_t> places;
  if (count == 1) {
    const int64_t best = ArgMax(host, logits.data(), size);
    if (best >= 0) places.push_back(static_cast<int32_t>(best));
  } else {
    places = LikeliestTokens(logits, count);
  }
  const float total = choice.wants_probabilities && !places.empty() ? LogSumExp(host, logits.data(), size) : 0.0f;
  for (const int32_t place : places) {
    chosen.token_ids.push_back(listed.empty() ? place : listed[static_cast<size_t>(place)]);
    if (choice.wants_probabilities) chosen.probabilities.push_back(ExpF32(logits[static_cast<size_t>(place)] - total));
  }
  return chosen;
}

}  // namespace

DraftChoices ChooseTokens(const KernelContext& host, const DraftChoice& choice, std::span<const int32_t> listed,
                          std::span<const float> logits, int64_t vocab_size, int64_t count) {
  DraftChoices chosen;
  if (!choice.wants_laws && IsPlainGreedy(choice.params)) return ChooseLikeliest(host, choice, listed, logits, count);
  const std::vector<float> law = LawOf(host, choice, listed, logits, vocab_size);
  if (law.empty()) return chosen;
  const auto position = static_cast<int64_t>(choice.token_ids.size());
  const bool greedy = choice.params.greedy();
  const NoiseKey key = {choice.params.seed, position, choice.sample_index, choice.wants_laws ? 1u : 0u,
                        choice.wants_laws ? choice.round : 0};
  if (greedy || choice.wants_laws) {
    chosen.token_ids = DrawSeveral(greedy ? nullptr : &key, law.data(), vocab_size, count);
  } else {
    chosen.token_ids = DrawOneByOne(host, key, law, count);
  }
  if (choice.wants_probabilities) {
    const float total = LogSumExp(host, law.data(), vocab_size);
    for (const int32_t id : chosen.token_ids) chosen.probabilities.push_back(ExpF32(law[static_cast<size_t>(id)] - total));
  }
  for (size_t i = 0; choice.wants_laws && i < chosen.token_ids.size(); ++i) {
    if (greedy) {
      chosen.laws.emplace_back(law.size(), 0.0f)[static_cast<size_t>(chosen.token_ids[i])] = 1.0f;
    } else {
      chosen.laws.push_back(ProbsOf(host, law, std::span(chosen.token_ids).first(i)));
    }
  }
  return chosen;
}

}  // namespace llmi

#include "sampling/repetition.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/scalar_math.h"

namespace llmi {
namespace {

std::span<const int32_t> Window(std::span<const int32_t> token_ids, int64_t last_n) {
  const auto size = static_cast<int64_t>(token_ids.size());
  return last_n < 0 || last_n >= size ? token_ids : token_ids.last(static_cast<size_t>(last_n));
}

// The breakers whose first token is `head`; breakers are sorted.
std::span<const std::vector<int32_t>> BreakersFrom(const std::vector<std::vector<int32_t>>& breakers, int32_t head) {
  const auto begin = std::lower_bound(breakers.begin(), breakers.end(), head, [](const auto& entry, int32_t id) { return entry[0] < id; });
  auto end = begin;
  while (end != breakers.end() && (*end)[0] == head) ++end;
  return {begin, end};
}

// The number of tokens after the latest breaker that begins latest; all of them if there is none.
int64_t TokensAfterBreaker(const std::vector<std::vector<int32_t>>& breakers, std::span<const int32_t> tokens) {
  const auto size = static_cast<int64_t>(tokens.size());
  if (breakers.empty()) return size;
  for (int64_t begin = size - 1; begin >= 0; --begin) {
    const std::span<const int32_t> rest = tokens.subspan(static_cast<size_t>(begin));
    int64_t longest = 0;
    for (const std::vector<int32_t>& breaker : BreakersFrom(breakers, rest[0])) {
      if (breaker.size() <= rest.size() && std::equal(breaker.begin(), breaker.end(), rest.begin())) {
        longest = std::max(longest, static_cast<int64_t>(breaker.size()));
      }
    }
    if (longest > 0) return size - begin - longest;
  }
  return size;
}

// lengths[k], k >= 1: how many tokens before the end equal those before the end of the list without its last k (the Z algorithm from the
// back).
std::vector<int64_t> SuffixMatches(std::span<const int32_t> tokens) {
  const auto size = static_cast<int64_t>(tokens.size());
  const auto from_back = [&](int64_t i) { return tokens[static_cast<size_t>(size - 1 - i)]; };
  std::vector<int64_t> lengths(tokens.size(), 0);
  int64_t left = 0;   // the match that reaches furthest begins here
  int64_t right = 0;  // and ends before here
  for (int64_t k = 1; k < size; ++k) {
    int64_t length = k < right ? std::min(right - k, lengths[static_cast<size_t>(k - left)]) : 0;
    while (k + length < size && from_back(length) == from_back(k + length)) ++length;
    lengths[static_cast<size_t>(k)] = length;
    if (k + length > right) {
      left = k;
      right = k + length;
    }
  }
  return lengths;
}

bool IsBreaker(const std::vector<std::vector<int32_t>>& breakers, int32_t id) {
  const auto found = BreakersFrom(breakers, id);
  return !found.empty() && found.front().size() == 1;  // the shortest comes first
}

float DryPenalty(const SamplingParams& params, int64_t length) {
  constexpr double kLogOfLargest = 88.7228391;  // ln(FLT_MAX), as in llama.cpp
  int64_t exponent = length - params.dry_allowed_length;
  double power = 1.0;
  if (params.dry_base > 1.000001) {
    const double log_base = LogF64(params.dry_base);
    exponent = std::min(exponent, static_cast<int64_t>(kLogOfLargest / log_base));
    power = ExpF64(static_cast<double>(exponent) * log_base);
  }
  return static_cast<float>(std::min(params.dry_multiplier * power, static_cast<double>(std::numeric_limits<float>::max())));
}

}  // namespace

void AppendRepeatedNgrams(int64_t size, std::span<const int32_t> token_ids, std::vector<int32_t>* banned) {
  if (size < 1 || static_cast<int64_t>(token_ids.size()) < size) return;
  const auto context = static_cast<size_t>(size - 1);
  const std::span<const int32_t> last = token_ids.last(context);
  for (size_t i = context; i < token_ids.size(); ++i) {
    if (std::equal(last.begin(), last.end(), token_ids.begin() + static_cast<int64_t>(i - context))) banned->push_back(token_ids[i]);
  }
}

std::vector<Repeat> FindRepeats(const SamplingParams& params, std::span<const int32_t> token_ids) {
  const std::span<const int32_t> tokens = Window(token_ids, params.dry_penalty_last_n);
  std::vector<Repeat> repeats;
  if (static_cast<int64_t>(tokens.size()) <= params.dry_allowed_length) return repeats;
  const int64_t limit = TokensAfterBreaker(params.dry_breakers, tokens);
  if (limit < params.dry_allowed_length) return repeats;
  const std::vector<int64_t> matches = SuffixMatches(tokens);
  for (size_t k = 1; k < tokens.size(); ++k) {
    const int64_t length = std::min(matches[k], limit);
    if (length >= params.dry_allowed_length) repeats.push_back({tokens[tokens.size() - k], length});
  }
  std::sort(repeats.begin(), repeats.end(),
            [](const Repeat& a, const Repeat& b) { return a.id < b.id || (a.id == b.id && a.length > b.length); });
  repeats.erase(std::unique(repeats.begin(), repeats.end(), [](const Repeat& a, const Repeat& b) { return a.id == b.id; }), repeats.end());
  std::erase_if(repeats, [&](const Repeat& repeat) { return IsBreaker(params.dry_breakers, repeat.id); });
  return repeats;
}

void ApplyDry(const SamplingParams& params, std::span<const int32_t> token_ids, float* logits) {
  for (const Repeat& repeat : FindRepeats(params, token_ids)) logits[repeat.id] = logits[repeat.id] - DryPenalty(params, repeat.length);
}

}  // namespace llmi

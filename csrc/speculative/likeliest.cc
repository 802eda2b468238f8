#include "speculative/likeliest.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace llmi {
namespace {

constexpr size_t kBlock = 64;  // elements that are compared with the smallest kept logit at once

}  // namespace

std::vector<int32_t> LikeliestTokens(std::span<const float> logits, int64_t count) {
  std::vector<std::pair<float, int32_t>> kept;  // the largest first
  const auto wanted = static_cast<size_t>(std::max<int64_t>(count, 0));
  if (wanted == 0) return {};
  float least = -std::numeric_limits<float>::infinity();
  for (size_t begin = 0; begin < logits.size(); begin += kBlock) {
    const auto block = logits.subspan(begin, std::min(kBlock, logits.size() - begin));
    int any = 0;
    for (const float logit : block) any |= static_cast<int>(logit > least);
    if (any == 0) continue;
    for (size_t i = 0; i < block.size(); ++i) {
      if (!(block[i] > least) || !std::isfinite(block[i])) continue;
      const auto after = std::find_if(kept.begin(), kept.end(), [&](const auto& other) { return block[i] > other.first; });
      kept.insert(after, {block[i], static_cast<int32_t>(begin + i)});
      if (kept.size() > wanted) kept.pop_back();
      if (kept.size() == wanted) least = kept.back().first;
    }
  }
  std::vector<int32_t> tokens;
  for (const auto& [logit, token] : kept) tokens.push_back(token);
  return tokens;
}

}  // namespace llmi

#include "engine/beams/forced_words.h"

#include <algorithm>
#include <numeric>

namespace llmi {

ForcedProgress::ForcedProgress(const ForcedWords& words, std::span<const int32_t> tokens) : words_(&words), pending_(words.size()) {
  std::iota(pending_.begin(), pending_.end(), size_t{0});
  for (const int32_t token : tokens) Add(token);
}

int64_t ForcedProgress::LengthOf(size_t entry) const {
  size_t longest = 0;
  for (const auto& word : (*words_)[entry]) longest = std::max(longest, word.size());
  return static_cast<int64_t>(longest);
}

// The tokens that follow these in alternatives of an entry, each once.
std::vector<int32_t> ForcedProgress::Following(size_t entry, std::span<const int32_t> begun) const {
  std::vector<int32_t> tokens;
  for (const auto& word : (*words_)[entry]) {
    if (word.size() <= begun.size() || !std::equal(begun.begin(), begun.end(), word.begin())) continue;
    const int32_t next = word[begun.size()];
    if (std::find(tokens.begin(), tokens.end(), next) == tokens.end()) tokens.push_back(next);
  }
  return tokens;
}

void ForcedProgress::Add(int32_t token) {
  const auto continues = [&](size_t entry, std::span<const int32_t> begun) {
    const std::vector<int32_t> next = Following(entry, begun);
    return std::find(next.begin(), next.end(), token) != next.end();
  };
  if (current_ < 0) {
    const auto entry = std::find_if(pending_.begin(), pending_.end(), [&](size_t pending) { return continues(pending, {}); });
    if (entry == pending_.end()) return;
    current_ = static_cast<int64_t>(*entry);
    pending_.erase(entry);
    begun_.clear();
  } else if (!continues(static_cast<size_t>(current_), begun_)) {
    pending_.push_back(static_cast<size_t>(current_));
    current_ = -1;
    return;
  }
  begun_.push_back(token);
  if (!Following(static_cast<size_t>(current_), begun_).empty()) return;
  ++num_complete_;
  current_ = -1;
}

int64_t ForcedProgress::bank() const {
  int64_t longest = 0;
  for (size_t entry = 0; entry < words_->size(); ++entry) longest = std::max(longest, LengthOf(entry));
  const auto begun = static_cast<int64_t>(begun_.size());
  return num_complete_ * longest + (current_ < 0 ? 0 : longest - (LengthOf(static_cast<size_t>(current_)) - begun));
}

std::vector<int32_t> ForcedProgress::NextTokens() const {
  if (current_ >= 0) return Following(static_cast<size_t>(current_), begun_);
  std::vector<int32_t> tokens;
  for (const size_t entry : pending_) {
    const std::vector<int32_t> first = Following(entry, {});
    tokens.insert(tokens.end(), first.begin(), first.end());
  }
  return tokens;
}

std::vector<size_t> OrderByBanks(std::span<const int64_t> banks, std::span<const BeamCandidate> candidates, int64_t count) {
  std::vector<size_t> order(banks.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const auto weight = [&](size_t i) { return static_cast<double>(100 * banks[i]) + candidates[i].score; };
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return weight(a) != weight(b) ? weight(a) > weight(b) : RanksBefore(candidates[a], candidates[b]); });
  std::vector<int64_t> place_in_run(banks.size());
  for (size_t i = 1; i < order.size(); ++i) {
    place_in_run[order[i]] = banks[order[i]] == banks[order[i - 1]] ? place_in_run[order[i - 1]] + 1 : 0;
  }
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return place_in_run[a] < place_in_run[b]; });
  order.resize(std::min(order.size(), static_cast<size_t>(count)));
  return order;
}

}  // namespace llmi

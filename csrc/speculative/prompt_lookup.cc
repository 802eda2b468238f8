#include "speculative/prompt_lookup.h"

#include <algorithm>
#include <iterator>

namespace llmi {
namespace {

// The hash of the n tokens before `end`.
uint64_t HashNgram(std::span<const int32_t> token_ids, int64_t end, int64_t n) {
  uint64_t hash = 0x9E3779B97F4A7C15u;
  for (int64_t i = end - n; i < end; ++i) {
    hash ^= static_cast<uint64_t>(static_cast<uint32_t>(token_ids[static_cast<size_t>(i)]));
    hash *= 0xFF51AFD7ED558CCDu;
    hash ^= hash >> 32;
  }
  return hash;
}

// Kind i + 1 means that at least kMatchLengths[i] of the last tokens, drafted ones among them, also precede the position found.
constexpr int64_t kMatchLengths[] = {1, 2, 3, 5, 9};
// Measured on chats of six kinds.
constexpr double kNodeRates[2][5] = {{0.03, 0.12, 0.25, 0.45, 0.7}, {0.15, 0.35, 0.5, 0.7, 0.9}};  // [greedy]
static_assert(std::size(kNodeRates[0]) == std::size(kMatchLengths));

int64_t MatchLength(std::span<const int32_t> token_ids, int64_t begin) {
  int64_t length = 0;
  while (length < kMatchLengths[std::size(kMatchLengths) - 1] && length < begin &&
         token_ids[static_cast<size_t>(begin - 1 - length)] == token_ids[token_ids.size() - 1 - static_cast<size_t>(length)]) {
    ++length;
  }
  return length;
}

NodeKind KindOf(int64_t length) {
  return {static_cast<int16_t>(std::upper_bound(std::begin(kMatchLengths), std::end(kMatchLengths), length) - std::begin(kMatchLengths)),
          -1};
}

}  // namespace

NgramIndex::NgramIndex(int64_t min_ngram, int64_t max_ngram)
    : min_ngram_(min_ngram), ends_(static_cast<size_t>(max_ngram - min_ngram + 1)) {}

void NgramIndex::Update(std::span<const int32_t> token_ids) {
  const auto size = static_cast<int64_t>(token_ids.size());
  // Find will search for the n-gram that ends at the last token, so that n-gram is added only in the next call.
  for (; num_seen_ + 1 < size; ++num_seen_) {
    const int64_t end = num_seen_ + 1;
    for (size_t i = 0; i < ends_.size(); ++i) {
      const int64_t n = min_ngram_ + static_cast<int64_t>(i);
      if (n <= end) ends_[i][HashNgram(token_ids, end, n)] = end;
    }
  }
}

int64_t NgramIndex::Find(std::span<const int32_t> token_ids) const {
  const auto size = static_cast<int64_t>(token_ids.size());
  for (size_t i = ends_.size(); i-- > 0;) {
    const int64_t n = min_ngram_ + static_cast<int64_t>(i);
    if (n >= size) continue;
    const auto found = ends_[i].find(HashNgram(token_ids, size, n));
    if (found == ends_[i].end()) continue;
    const int64_t end = found->second;
    if (std::equal(token_ids.end() - n, token_ids.end(), token_ids.begin() + end - n)) return end;
  }
  return -1;
}

std::unique_ptr<DrafterState> PromptLookup::NewState(const SequenceKey& /*sequence*/, HeadSource& /*heads*/) {
  return std::make_unique<NgramIndex>(NewIndex());
}

double PromptLookup::expected_rate(int32_t kind, bool greedy) const {
  return kind > 0 && kind <= static_cast<int32_t>(std::size(kMatchLengths)) ? kNodeRates[greedy][kind - 1]
                                                                            : Drafter::expected_rate(kind, greedy);
}

void PromptLookup::Propose(std::span<Seat> seats) {
  for (Seat& seat : seats) {
    const std::span<const int32_t> text = seat.text.token_ids;
    auto& index = static_cast<NgramIndex&>(*seat.state);
    index.Update(text);
    const int64_t begin = index.Find(text);
    if (begin < 0) continue;
    const int64_t length = MatchLength(text, begin);
    // A match near the end of the text runs into its own continuation: a periodic text is continued with its period.
    const int64_t period = static_cast<int64_t>(text.size()) - begin;
    for (int64_t i = 0; i < seat.budget.max_nodes; ++i) {
      seat.draft.token_ids.push_back(text[static_cast<size_t>(begin + i % period)]);
      seat.draft.kinds.push_back(KindOf(length + i));
    }
  }
}

}  // namespace llmi

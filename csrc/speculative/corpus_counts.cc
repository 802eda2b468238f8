// How a corpus table is made of texts.
#include <algorithm>
#include <cmath>
#include <string>
#include <unordered_map>
#include <utility>

#include "core/errors.h"
#include "speculative/corpus_slots.h"
#include "speculative/corpus_table.h"

namespace llmi {
namespace {

constexpr double kMostFilled = 0.85;  // the share of slots that may hold entries
// A context that was seen once says little: this is taken off each count before it becomes a rate (absolute discounting; Ney, Essen,
// Kneser, 1994).
constexpr double kDiscount = 0.75;

// A context at one place of the texts, and the token that follows.
struct Occurrence {
  uint64_t hash;
  int32_t next;
  uint32_t end;  // where the context ends
};

struct Entry {
  uint64_t hash;
  int32_t token;
  int32_t order;
  int64_t gain;  // tokens of the texts that it predicts, less those that the shorter context predicts there
  float rate;
};

using Predictions = std::unordered_map<uint64_t, int32_t>;

class Counter {
 public:
  Counter(std::span<const int32_t> token_ids, std::span<const int64_t> ends) : token_ids_(token_ids), ends_(ends) {}

  // Adds the entries whose contexts have `order` tokens. Call it with 1, 2, ...
  void Add(int64_t order) {
    occurrences_.clear();
    int64_t begin = 0;
    for (const int64_t end : ends_) {
      for (int64_t i = begin + order; i < end; ++i) {
        const auto at = static_cast<size_t>(i);
        occurrences_.push_back({HashContext(token_ids_.subspan(at - static_cast<size_t>(order), static_cast<size_t>(order))),
                                token_ids_[at], static_cast<uint32_t>(i)});
      }
      begin = end;
    }
    std::sort(occurrences_.begin(), occurrences_.end(),
              [](const Occurrence& a, const Occurrence& b) { return std::pair(a.hash, a.next) < std::pair(b.hash, b.next); });
    Predictions predictions;
    for (auto first = occurrences_.begin(); first != occurrences_.end();) {
      const auto last = std::find_if(first, occurrences_.end(), [&](const Occurrence& other) { return other.hash != first->hash; });
      AddContext({first, last}, order, &predictions);
      first = last;
    }
    shorter_ = std::move(predictions);
  }

  // The best first: those that predict most, shorter contexts before longer ones.
  std::vector<Entry> TakeEntries() {
    std::sort(entries_.begin(), entries_.end(), [](const Entry& a, const Entry& b) {
      if (a.gain != b.gain) return a.gain > b.gain;
      return std::pair(a.order, a.hash) < std::pair(b.order, b.hash);
    });
    return std::move(entries_);
  }

 private:
  void AddContext(std::span<const Occurrence> context, int64_t order, Predictions* predictions) {
    int32_t best = -1;
    int64_t best_count = 0;
    const int32_t shorter = order == 1 ? -1 : ShorterPrediction(context.front(), order);
    int64_t shorter_count = 0;
    for (size_t first = 0; first < context.size();) {
      size_t last = first;
      while (last < context.size() && context[last].next == context[first].next) ++last;
      const auto count = static_cast<int64_t>(last - first);
      if (context[first].next == shorter) shorter_count = count;
      // Of equal counts the shorter context's token is kept: then no entry is needed.
      if (count > best_count || (count == best_count && context[first].next == shorter)) {
        best = context[first].next;
        best_count = count;
      }
      first = last;
    }
    predictions->emplace(context.front().hash, best);
    if (best == shorter) return;
    const double rate = (static_cast<double>(best_count) - kDiscount) / static_cast<double>(context.size());
    entries_.push_back({context.front().hash, best, static_cast<int32_t>(order), best_count - shorter_count, static_cast<float>(rate)});
  }

  int32_t ShorterPrediction(const Occurrence& occurrence, int64_t order) const {
    const auto size = static_cast<size_t>(order - 1);
    const auto found = shorter_.find(HashContext(token_ids_.subspan(occurrence.end - size, size)));
    return found == shorter_.end() ? -1 : found->second;
  }

  const std::span<const int32_t> token_ids_;
  const std::span<const int64_t> ends_;
  std::vector<Occurrence> occurrences_;
  Predictions shorter_;  // of the contexts with one token less, by hash
  std::vector<Entry> entries_;
};

void CheckTexts(std::span<const int32_t> token_ids, std::span<const int64_t> ends, int64_t vocab_size) {
  CheckArgument(token_ids.size() < (uint64_t{1} << 32), "a table is made of at most 2^32 tokens");
  int64_t begin = 0;
  for (const int64_t end : ends) {
    CheckArgument(end >= begin, "ends must ascend");
    begin = end;
  }
  CheckArgument(begin == static_cast<int64_t>(token_ids.size()), "the last text must end with the last token");
  for (const int32_t token : token_ids) {
    if (token >= 0 && token < vocab_size) continue;
    throw Error(ErrorKind::kInvalidArgument,
                "texts hold token " + std::to_string(token) + ", outside the vocabulary of " + std::to_string(vocab_size), "texts");
  }
}

CorpusTable::Slots EmptySlots(size_t num_slots, bool wide) {
  CorpusTable::Slots slots;
  slots.checks.resize(num_slots);
  slots.tokens.resize(num_slots);
  slots.rates.resize(num_slots);
  if (wide) slots.high_tokens.resize(num_slots);
  return slots;
}

}  // namespace

CorpusTable CorpusTable::Count(std::span<const int32_t> token_ids, std::span<const int64_t> ends, int64_t vocab_size, int64_t max_order,
                               int64_t max_bytes) {
  CheckArgument(vocab_size >= 1 && vocab_size <= kMaxCorpusVocabulary, "vocab_size must lie in [1, 16,777,216]");
  CheckArgument(max_order >= 1 && max_order <= kMaxCorpusOrder, "max_order must lie in [1, 8]");
  CheckArgument(max_bytes >= 0, "max_bytes must be at least 0");
  CheckTexts(token_ids, ends, vocab_size);
  Counter counter(token_ids, ends);
  for (int64_t order = 1; order <= max_order; ++order) counter.Add(order);
  const std::vector<Entry> entries = counter.TakeEntries();

  const bool wide = vocab_size > 65536;
  const double needed = std::ceil(static_cast<double>(entries.size()) / kMostFilled);
  const auto num_slots = std::min({static_cast<size_t>(needed), static_cast<size_t>(max_bytes) / (wide ? 6 : 5), size_t{UINT32_MAX}});
  Slots slots = EmptySlots(num_slots, wide);
  auto room = static_cast<int64_t>(kMostFilled * static_cast<double>(num_slots));
  for (const Entry& entry : entries) {
    if (room == 0) break;
    const size_t slot = FindSlot(slots.checks, entry.hash, true);
    if (slot == kNoSlot || slots.checks[slot] != 0) continue;  // crowded, or another context with the same check, which is worth more
    slots.checks[slot] = PlaceOf(entry.hash, num_slots).check;
    slots.tokens[slot] = static_cast<uint16_t>(entry.token & 0xFFFF);
    if (wide) slots.high_tokens[slot] = static_cast<uint8_t>(entry.token >> 16);
    slots.rates[slot] = static_cast<uint8_t>(std::lround(entry.rate * 255.0f));
    --room;
  }
  return CorpusTable(vocab_size, max_order, std::move(slots));
}

}  // namespace llmi

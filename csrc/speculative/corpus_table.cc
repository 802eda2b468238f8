#include "speculative/corpus_table.h"

#include <algorithm>
#include <string>
#include <utility>

#include "core/errors.h"
#include "speculative/corpus_slots.h"

namespace llmi {
namespace {

// The slots of a context are searched from its home on. Count keeps to this limit, so that a search ends soon in any table.
constexpr size_t kMaxProbes = 64;

}  // namespace

uint64_t HashContext(std::span<const int32_t> context) {
  uint64_t hash = 0x9E3779B97F4A7C15u ^ context.size();
  for (const int32_t token : context) {
    hash ^= static_cast<uint64_t>(static_cast<uint32_t>(token));
    hash *= 0xFF51AFD7ED558CCDu;
    hash ^= hash >> 32;
  }
  return hash;
}

SlotPlace PlaceOf(uint64_t hash, size_t num_slots) {
  const auto check = static_cast<uint16_t>(hash & 0xFFFFu);
  return {static_cast<size_t>(((hash >> 32) * num_slots) >> 32), check == 0 ? uint16_t{1} : check};
}

size_t FindSlot(const std::vector<uint16_t>& checks, uint64_t hash, bool or_empty) {
  if (checks.empty()) return kNoSlot;
  const SlotPlace place = PlaceOf(hash, checks.size());
  size_t slot = place.home;
  for (size_t i = 0; i < std::min(kMaxProbes, checks.size()); ++i) {
    if (checks[slot] == place.check) return slot;
    if (checks[slot] == 0) return or_empty ? slot : kNoSlot;
    if (++slot == checks.size()) slot = 0;
  }
  return kNoSlot;
}

CorpusTable::CorpusTable(int64_t vocab_size, int64_t max_order, Slots slots)
    : vocab_size_(vocab_size), max_order_(max_order), slots_(std::move(slots)) {
  const size_t count = slots_.checks.size();
  CheckArgument(vocab_size >= 1 && vocab_size <= kMaxCorpusVocabulary, "vocab_size must lie in [1, 16,777,216]");
  CheckArgument(max_order >= 1 && max_order <= kMaxCorpusOrder, "max_order must lie in [1, 8]");
  CheckArgument(count < (uint64_t{1} << 32), "a table has at most 2^32 slots");
  CheckArgument(slots_.tokens.size() == count && slots_.rates.size() == count, "checks, tokens and rates must have one element a slot");
  CheckArgument(slots_.high_tokens.empty() || slots_.high_tokens.size() == count, "high_tokens must be empty or have one element a slot");
  for (size_t slot = 0; slot < count; ++slot) {
    if (slots_.checks[slot] == 0) continue;
    ++num_entries_;
    if (TokenAt(slot) >= vocab_size) {
      throw Error(ErrorKind::kInvalidArgument, "slot " + std::to_string(slot) + " holds token " + std::to_string(TokenAt(slot)) +
                                                   ", outside the vocabulary of " + std::to_string(vocab_size));
    }
  }
}

int32_t CorpusTable::TokenAt(size_t slot) const {
  const int32_t high = slots_.high_tokens.empty() ? 0 : slots_.high_tokens[slot];
  return (high << 16) | slots_.tokens[slot];
}

CorpusTable::Guess CorpusTable::Next(std::span<const int32_t> text) const {
  for (int64_t order = std::min(max_order_, static_cast<int64_t>(text.size())); order > 0; --order) {
    const size_t slot = FindSlot(slots_.checks, HashContext(text.last(static_cast<size_t>(order))), false);
    if (slot != kNoSlot) return {TokenAt(slot), static_cast<float>(slots_.rates[slot]) / 255.0f, order};
  }
  return {};
}

int64_t CorpusTable::num_bytes() const {
  return static_cast<int64_t>(2 * (slots_.checks.size() + slots_.tokens.size()) + slots_.high_tokens.size() + slots_.rates.size());
}

}  // namespace llmi

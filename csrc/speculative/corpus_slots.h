// Where the entries of a corpus table are stored. Files rely on it (corpus_table.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace llmi {

constexpr int64_t kMaxCorpusVocabulary = int64_t{1} << 24;
constexpr size_t kNoSlot = SIZE_MAX;

struct SlotPlace {
  size_t home;     // the slot where a search begins
  uint16_t check;  // never 0
};

uint64_t HashContext(std::span<const int32_t> context);
SlotPlace PlaceOf(uint64_t hash, size_t num_slots);
// The slot of the context with this hash, or kNoSlot. or_empty: or the empty slot where it belongs.
size_t FindSlot(const std::vector<uint16_t>& checks, uint64_t hash, bool or_empty);

}  // namespace llmi

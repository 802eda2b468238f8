// The part of the vocabulary that a draft's law is over: whole tiles of the LM head, those of ids that are frequent and those of ids
// that the text holds. A draft step reads only their weights (Zhao et al., FR-Spec, 2025).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/ops/linear.h"

namespace llmi {

class Shortlist {
 public:
  Shortlist(int64_t vocab_size, std::span<const int32_t> token_ids) : has_(static_cast<size_t>(NumTiles(vocab_size))) { Add(token_ids); }

  // Ids in [0, vocab_size).
  void Add(std::span<const int32_t> token_ids) {
    for (int32_t id : token_ids) has_[static_cast<size_t>(id / kTileRows)] = 1;
  }
  // Of an equal vocabulary.
  void Add(const Shortlist& other) {
    for (size_t tile = 0; tile < has_.size(); ++tile) has_[tile] |= other.has_[tile];
  }
  // Runs of tiles that it has, or, with `others`, has not; ascending.
  std::vector<TileRange> Tiles(bool others = false) const {
    std::vector<TileRange> ranges;
    const auto count = static_cast<int64_t>(has_.size());
    for (int64_t tile = 0; tile < count; ++tile) {
      if ((has_[static_cast<size_t>(tile)] != 0) == others) continue;
      if (ranges.empty() || ranges.back().end != tile) ranges.push_back({tile, tile});
      ++ranges.back().end;
    }
    return ranges;
  }

 private:
  std::vector<uint8_t> has_;
};

}  // namespace llmi

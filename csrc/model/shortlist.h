// The part of the vocabulary from which a draft model draws: whole tiles of the LM head, namely those of frequent ids and those of ids in
// the text so far. A draft step reads only the weights of these tiles (Zhao et al., FR-Spec, 2025).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/ops/linear.h"

namespace llmi {

class Shortlist {
 public:
  Shortlist(int64_t vocab_size, std::span<const int32_t> token_ids) : has_(static_cast<size_t>(NumTiles(vocab_size))) { Add(token_ids); }

  // token_ids: each in [0, vocab_size).
  void Add(std::span<const int32_t> token_ids) {
    for (int32_t id : token_ids) has_[static_cast<size_t>(id / kTileRows)] = 1;
  }
  // other: must have the same vocabulary size.
  void Add(const Shortlist& other) {
    for (size_t tile = 0; tile < has_.size(); ++tile) has_[tile] |= other.has_[tile];
  }
  // The runs of tiles in the shortlist, ascending; with `others`, the runs of the remaining tiles.
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

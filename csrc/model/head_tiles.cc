#include "model/head_tiles.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace llmi {
namespace {

constexpr int64_t kTilesPerWord = 32 / kTileRows;
constexpr uint32_t kTileMask = (1u << kTileRows) - 1;
static_assert(kTilesPerWord == 2, "a word of token bits has two tiles");

// A set of tiles: tile t is bit t % 64 of word t / 64.
using TileBits = std::vector<uint64_t>;

bool Has(const TileBits& bits, int64_t tile) { return (bits[static_cast<size_t>(tile / 64)] >> (tile % 64) & 1) != 0; }

TileBits TileBitsOf(TokenBits allowed) {
  TileBits bits(allowed.size() * kTilesPerWord / 64 + 1);
  if (SizeOf(allowed, 1).num_tokens == 1) return bits;
  for (size_t word = 0; word < allowed.size(); ++word) {
    const uint64_t pair = ((allowed[word] & kTileMask) != 0 ? 1u : 0u) | (allowed[word] > kTileMask ? 2u : 0u);
    bits[word / 32] |= pair << (word % 32 * 2);
  }
  return bits;
}

class EntryList {
 public:
  // tile: not below those before.
  void Add(int64_t row, int64_t num_rows, int64_t tile) {
    if (tile != tile_) {
      open_.swap(next_);
      next_.clear();
      if (tile != tile_ + 1) open_.clear();
      tile_ = tile;
    }
    const auto same =
        std::find_if(open_.begin(), open_.end(), [&](size_t i) { return entries_[i].row == row && entries_[i].num_rows == num_rows; });
    if (same != open_.end()) {
      ++entries_[*same].tiles.end;
      next_.push_back(*same);
      return;
    }
    next_.push_back(entries_.size());
    entries_.push_back({row, num_rows, {tile, tile + 1}});
  }
  std::vector<RowTiles> Take() { return std::move(entries_); }

 private:
  std::vector<RowTiles> entries_;
  std::vector<size_t> open_, next_;  // the entries that end with the tile before, and with this one
  int64_t tile_ = -1;
};

}  // namespace

HeadSize SizeOf(TokenBits allowed, int64_t most_tiles) {
  HeadSize size;
  for (const uint32_t word : allowed) {
    if (word == 0) continue;
    size.num_tokens += std::popcount(word);
    size.num_tiles += ((word & kTileMask) != 0 ? 1 : 0) + (word > kTileMask ? 1 : 0);
    if (size.num_tiles > most_tiles) break;
  }
  return size;
}

std::vector<RowTiles> TilesOfRows(std::span<const TokenBits> allowed) {
  std::vector<TileBits> rows;
  TileBits any;
  for (const TokenBits set : allowed) {
    rows.push_back(TileBitsOf(set));
    any.resize(std::max(any.size(), rows.back().size()));
    for (size_t word = 0; word < rows.back().size(); ++word) any[word] |= rows.back()[word];
  }
  EntryList entries;
  const auto num_rows = static_cast<int64_t>(rows.size());
  for (size_t word = 0; word < any.size(); ++word) {
    for (uint64_t left = any[word]; left != 0; left &= left - 1) {
      const auto tile = static_cast<int64_t>(word * 64) + std::countr_zero(left);
      for (int64_t row = 0; row < num_rows; ++row) {
        const int64_t begin = row;
        while (row < num_rows && Has(rows[static_cast<size_t>(row)], tile)) ++row;
        if (row > begin) entries.Add(begin, row - begin, tile);
      }
    }
  }
  return entries.Take();
}

}  // namespace llmi

// Which tiles of the LM head hold tokens that a row's masks allow.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/token_bits.h"
#include "kernels/ops/linear_row_tiles.h"

namespace llmi {

// The size of a set: its tokens, and the tiles that hold some of them. Counting ends at `most_tiles` + 1 tiles.
struct HeadSize {
  int64_t num_tokens = 0;
  int64_t num_tiles = 0;
};
HeadSize SizeOf(TokenBits allowed, int64_t most_tiles);

// The tiles that each row needs, by ascending tiles: rows that are next to each other and need the same tile share an entry, and an entry
// goes on over tiles that follow each other. allowed: one set for each row; a set of one token needs no tile.
std::vector<RowTiles> TilesOfRows(std::span<const TokenBits> allowed);

}  // namespace llmi

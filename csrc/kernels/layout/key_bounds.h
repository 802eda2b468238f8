// The smallest and the largest value of each dimension of K over the 16 slots of a tile: what bounds a query's product with any of its
// keys.
#pragma once

#include <stdint.h>

#include "kernels/layout/kv_layout.h"

namespace llmi {

// Those of one layer, by page as its K and V are (KvView).
struct KeyBoundsView {
  float* bounds = nullptr;   // of a tile [head_dim] smallest, then [head_dim] largest; null: there are none
  uint8_t* known = nullptr;  // of each tile: 0: not computed yet
  int64_t page_floats = 0;   // from page to page in `bounds`
  int64_t page_tiles = 0;    // likewise in `known`
  int64_t first_tile = 0;    // of the layer in its page
};

// A tile in a page of such a view: its bounds, and whether they are known.
struct TileBounds {
  float* bounds;
  uint8_t* known;
};
inline TileBounds BoundsOf(const KeyBoundsView& view, const KvView& kv, const int32_t* block_table, int64_t kv_head, int64_t tile) {
  const int64_t tiles_per_block = kv.block_size / kSlotsPerTile;
  const int64_t page = block_table[tile / tiles_per_block * kv.pages_per_block + kv.page_index];
  const int64_t in_page = view.first_tile + kv_head * tiles_per_block + tile % tiles_per_block;
  return {view.bounds + page * view.page_floats + in_page * 2 * kv.head_dim, view.known + page * view.page_tiles + in_page};
}

}  // namespace llmi

#include "cache/key_bounds.h"

#include <algorithm>

namespace llmi {

KeyBounds::PageSizes KeyBounds::SizesOf(const KvGroups& groups) {
  PageSizes sizes;
  for (const KvGroup& group : groups.groups()) {
    for (const int layer : group.layers) {
      const KvView view = groups.View(layer, nullptr);
      const int64_t num_tiles = groups.page_bytes() / (2 * KvTileBytes(view));
      sizes.num_tiles = std::max(sizes.num_tiles, num_tiles);
      sizes.num_floats = std::max(sizes.num_floats, num_tiles * 2 * view.head_dim);
    }
  }
  return sizes;
}

uint64_t KeyBounds::NumBytes(const KvGroups& groups, int64_t num_pages) {
  const PageSizes sizes = SizesOf(groups);
  return static_cast<uint64_t>(num_pages) * static_cast<uint64_t>(sizes.num_floats * int64_t{sizeof(float)} + sizes.num_tiles);
}

KeyBounds::KeyBounds(const KvGroups& groups, BlockPool* pool)
    : groups_(groups),
      sizes_(SizesOf(groups)),
      bounds_(static_cast<size_t>(pool->num_pages() * sizes_.num_floats) * sizeof(float), "bounds of keys", nullptr),
      known_(static_cast<size_t>(pool->num_pages() * sizes_.num_tiles)) {
  pool->set_on_allocate([this](int32_t page) { Forget(page, 0); });
}

KeyBoundsView KeyBounds::View(int layer) {
  const KvView view = groups_.View(layer, nullptr);
  return {.bounds = reinterpret_cast<float*>(bounds_.data()),
          .known = known_.data(),
          .page_floats = sizes_.num_floats,
          .page_tiles = sizes_.num_tiles,
          .first_tile = view.layer_offset / (2 * KvTileBytes(view))};
}

void KeyBounds::Forget(int32_t page, int64_t first_tile) {
  const int64_t per_block = groups_.block_size() / kSlotsPerTile;
  uint8_t* known = known_.data() + page * sizes_.num_tiles;
  for (int64_t tile = 0; tile < sizes_.num_tiles; ++tile) {
    if (tile % per_block >= first_tile) known[tile] = 0;
  }
}

}  // namespace llmi

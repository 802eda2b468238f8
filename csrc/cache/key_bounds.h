// Bounds of the keys of each tile of the cache (kernels/layout/key_bounds.h), for sequences that pick blocks. They lie beside the pages, by
// page, so that whoever shares a page shares them; they are computed where they are first read, and forgotten with the page's content.
#pragma once

#include <cstdint>
#include <vector>

#include "cache/block_pool.h"
#include "cache/kv_groups.h"
#include "core/aligned.h"
#include "kernels/layout/key_bounds.h"

namespace llmi {

class KeyBounds {
 public:
  // The most bytes that they take. Memory is taken as it is touched.
  static uint64_t NumBytes(const KvGroups& groups, int64_t num_pages);
  KeyBounds(const KvGroups& groups, BlockPool* pool);

  KeyBoundsView View(int layer);
  // The keys in these tiles of the page's blocks, from first_tile on, are to be written.
  void Forget(int32_t page, int64_t first_tile);

 private:
  struct PageSizes {
    int64_t num_floats = 0, num_tiles = 0;
  };
  static PageSizes SizesOf(const KvGroups& groups);

  const KvGroups& groups_;
  const PageSizes sizes_;
  AlignedBuffer bounds_;
  std::vector<uint8_t> known_;
};

}  // namespace llmi

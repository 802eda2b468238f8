// One element of the KV cache as fp32, in any of its types. Exact.
#pragma once

#include "core/half.h"
#include "kernels/kv_layout.h"

namespace llmi {

// index: of the element in its tile; scale: of its scale among the tile's, for an int8 cache.
LLMI_HD static inline float KvElement(const KvView& kv, const uint8_t* tile, int64_t index, int64_t scale) {
  if (kv.element_bytes == 4) return reinterpret_cast<const float*>(tile)[index];
  if (kv.element_bytes == 2) return HalfToFloat(reinterpret_cast<const uint16_t*>(tile)[index]);
  return static_cast<float>(reinterpret_cast<const int8_t*>(tile)[index]) * HalfToFloat(KvTileScales(kv, tile)[scale]);
}

// K[slot][d] from the slot's K tile.
LLMI_HD static inline float KvKey(const KvView& kv, const uint8_t* tile, int64_t slot, int64_t d) {
  const int64_t lane = slot % kSlotsPerTile;
  return KvElement(kv, tile, d * kSlotsPerTile + lane, d / kKvScaleBlock * kSlotsPerTile + lane);
}

// V[slot][d] from the slot's V tile.
LLMI_HD static inline float KvValue(const KvView& kv, const uint8_t* tile, int64_t slot, int64_t d) {
  const int64_t lane = slot % kSlotsPerTile;
  return KvElement(kv, tile, lane * kv.head_dim + d, lane * KvNumScales(kv.head_dim) + d / kKvScaleBlock);
}

}  // namespace llmi

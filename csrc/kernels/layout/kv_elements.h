// Reads one element of the KV cache, of any type, as fp32. Exact.
#pragma once

#include "core/bfloat16.h"
#include "core/float8.h"
#include "core/half.h"
#include "core/scalar_math.h"
#include "kernels/layout/kv_layout.h"

namespace llmi {

// index: the element's index in its tile. scale: the index of its scale among the tile's, for an int8 cache.
LLMI_HD static inline float KvElement(const KvView& kv, const uint8_t* tile, int64_t index, int64_t scale) {
  switch (kv.type) {
    case KvType::kF32: return reinterpret_cast<const float*>(tile)[index];
    case KvType::kF16: return HalfToFloat(reinterpret_cast<const uint16_t*>(tile)[index]);
    case KvType::kBF16: return Bfloat16ToFloat(reinterpret_cast<const uint16_t*>(tile)[index]);
    case KvType::kF8: return Float8ToFloat(tile[index]);
    case KvType::kInt8: break;
  }
  return static_cast<float>(reinterpret_cast<const int8_t*>(tile)[index]) * HalfToFloat(KvTileScales(kv, tile)[scale]);
}

// K[slot][d] from the slot's K tile.
LLMI_HD static inline float KvKey(const KvView& kv, const uint8_t* tile, int64_t slot, int64_t d) {
  const int64_t lane = slot % kSlotsPerTile;
  return KvElement(kv, tile, KvKeyIndex(kv.type == KvType::kBF16, lane, d), d / kKvScaleBlock * kSlotsPerTile + lane);
}

// V[slot][d] from the slot's V tile.
LLMI_HD static inline float KvValue(const KvView& kv, const uint8_t* tile, int64_t slot, int64_t d) {
  const int64_t lane = slot % kSlotsPerTile;
  return KvElement(kv, tile, KvValueIndex(kv.type == KvType::kBF16, kv.head_dim, lane, d),
                   lane * KvNumScales(kv.head_dim) + d / kKvScaleBlock);
}

// The score of q [head_dim] and the slot's K, before scaling.
LLMI_HD static inline float KvScore(const KvView& kv, const uint8_t* tile, int64_t slot, const float* q) {
  float score = 0.0f;
  if (kv.type == KvType::kBF16) {
    for (int64_t d = 0; d < kv.head_dim; d += 2) {
      score = DotPair(score, KvKey(kv, tile, slot, d), RoundToBfloat16(q[d]), KvKey(kv, tile, slot, d + 1), RoundToBfloat16(q[d + 1]));
    }
    return score;
  }
  for (int64_t d = 0; d < kv.head_dim; ++d) score = Fma(KvKey(kv, tile, slot, d), q[d], score);
  return score;
}

}  // namespace llmi

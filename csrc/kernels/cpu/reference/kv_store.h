// kv_write for 16 values of one slot's head.
#pragma once

#include "core/half.h"
#include "kernels/cpu/reference/int8_codes.h"
#include "kernels/kv_layout.h"

namespace llmi::reference {
namespace {

// values [16] go to indices first, first + stride, ... of the tile; their scale, in an int8 cache, to index `scale`.
LLMI_HD inline void StoreElements(const KvView& kv, const float* values, uint8_t* tile, int64_t first, int64_t stride, int64_t scale) {
  if (kv.element_bytes == 1) {
    const AbsMax absmax = FindAbsMax(values, kKvScaleBlock);
    for (int64_t i = 0; i < kKvScaleBlock; ++i) {
      reinterpret_cast<int8_t*>(tile)[first + i * stride] = static_cast<int8_t>(Int8Code(absmax, values[i]));
    }
    KvTileScales(kv, tile)[scale] = FloatToHalf(Int8Scale(absmax));
    return;
  }
  for (int64_t i = 0; i < kKvScaleBlock; ++i) {
    if (kv.element_bytes == 2) {
      reinterpret_cast<uint16_t*>(tile)[first + i * stride] = FloatToHalf(values[i]);
    } else {
      reinterpret_cast<float*>(tile)[first + i * stride] = values[i];
    }
  }
}

// Dimensions [16 part, 16 part + 16) of one head's K [head_dim], or V, in a lane of its tile.
LLMI_HD inline void StoreKeys(const KvView& kv, const float* k, int64_t part, int64_t lane, uint8_t* tile) {
  const int64_t d = part * kKvScaleBlock;
  StoreElements(kv, k + d, tile, d * kSlotsPerTile + lane, kSlotsPerTile, part * kSlotsPerTile + lane);
}
LLMI_HD inline void StoreValues(const KvView& kv, const float* v, int64_t part, int64_t lane, uint8_t* tile) {
  const int64_t d = part * kKvScaleBlock;
  StoreElements(kv, v + d, tile, lane * kv.head_dim + d, 1, lane * KvNumScales(kv.head_dim) + part);
}

}  // namespace
}  // namespace llmi::reference

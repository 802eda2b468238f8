// kv_write for 16 values of one head in one slot.
#pragma once

#include "core/bfloat16.h"
#include "core/float8.h"
#include "core/half.h"
#include "kernels/cpu/reference/int8_codes.h"
#include "kernels/layout/kv_layout.h"

namespace llmi::reference {
namespace {

// Stores values[16] at index(0), index(1), ... of `elements`, and for an int8 cache their scale.
template <typename Index>
LLMI_HD inline void StoreElements(KvType type, const float* values, uint8_t* elements, const Index& index, uint16_t* scale) {
  if (type == KvType::kInt8) {
    const AbsMax absmax = FindAbsMax(values, kKvScaleBlock);
    for (int64_t i = 0; i < kKvScaleBlock; ++i) {
      reinterpret_cast<int8_t*>(elements)[index(i)] = static_cast<int8_t>(Int8Code(absmax, values[i]));
    }
    *scale = FloatToHalf(Int8Scale(absmax));
    return;
  }
  for (int64_t i = 0; i < kKvScaleBlock; ++i) {
    if (type == KvType::kF32) {
      reinterpret_cast<float*>(elements)[index(i)] = values[i];
    } else if (type == KvType::kF8) {
      elements[index(i)] = FloatToFloat8(values[i]);
    } else {
      reinterpret_cast<uint16_t*>(elements)[index(i)] = type == KvType::kF16 ? FloatToHalf(values[i]) : FloatToBfloat16(values[i]);
    }
  }
}

// Stores dimensions [16 part, 16 part + 16) of one head's K or V, values[16], in a lane of its tile.
LLMI_HD inline void StoreKeys(const KvView& kv, const float* values, int64_t part, int64_t lane, uint8_t* tile) {
  const int64_t d = part * kKvScaleBlock;
  const bool in_pairs = kv.type == KvType::kBF16;
  StoreElements(
      kv.type, values, tile, [&](int64_t i) { return KvKeyIndex(in_pairs, lane, d + i); },
      KvTileScales(kv, tile) + part * kSlotsPerTile + lane);
}
LLMI_HD inline void StoreValues(const KvView& kv, const float* values, int64_t part, int64_t lane, uint8_t* tile) {
  const int64_t d = part * kKvScaleBlock;
  const bool in_pairs = kv.type == KvType::kBF16;
  StoreElements(
      kv.type, values, tile, [&](int64_t i) { return KvValueIndex(in_pairs, kv.head_dim, lane, d + i); },
      KvTileScales(kv, tile) + lane * KvNumScales(kv.head_dim) + part);
}

}  // namespace
}  // namespace llmi::reference

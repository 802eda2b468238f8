// Copies one slot's K and V of one head to another slot of the same sequence, bit for bit.
#pragma once

#include "kernels/layout/kv_layout.h"

namespace llmi {

// Copies the elements (or scales) of K and V, for every step-th of num_rows dimensions from `first` on.
template <typename Element>
LLMI_HD inline void CopySlotElements(bool in_pairs, const Element* k_source, Element* k_target, const Element* v_source, Element* v_target,
                                     int64_t num_rows, int64_t from, int64_t to, int64_t first, int64_t step) {
  for (int64_t row = first; row < num_rows; row += step) {
    k_target[KvKeyIndex(in_pairs, to, row)] = k_source[KvKeyIndex(in_pairs, from, row)];
    v_target[KvValueIndex(in_pairs, num_rows, to, row)] = v_source[KvValueIndex(in_pairs, num_rows, from, row)];
  }
}

// first, step: a thread's share of the dimensions; 0 and 1 are all.
LLMI_HD inline void CopyHeadSlot(const KvView& kv, const int32_t* block_table, int64_t head, int64_t from, int64_t to, int64_t first,
                                 int64_t step) {
  const uint8_t* k_source = KvTile(kv, block_table, head, from);
  uint8_t* k_target = KvTile(kv, block_table, head, to);
  const uint8_t* v_source = k_source + KvValueOffset(kv);
  uint8_t* v_target = k_target + KvValueOffset(kv);
  from %= kSlotsPerTile;
  to %= kSlotsPerTile;
  const auto copy = [&](auto element) {
    using Element = decltype(element);
    CopySlotElements(kv.type == KvType::kBF16, reinterpret_cast<const Element*>(k_source), reinterpret_cast<Element*>(k_target),
                     reinterpret_cast<const Element*>(v_source), reinterpret_cast<Element*>(v_target), kv.head_dim, from, to, first, step);
  };
  switch (kv.type) {
    case KvType::kInt8:
      copy(uint8_t{});
      CopySlotElements(false, KvTileScales(kv, k_source), KvTileScales(kv, k_target), KvTileScales(kv, v_source),
                       KvTileScales(kv, v_target), KvNumScales(kv.head_dim), from, to, first, step);
      break;
    case KvType::kF8: copy(uint8_t{}); break;
    case KvType::kF16:
    case KvType::kBF16: copy(uint16_t{}); break;
    case KvType::kF32: copy(uint32_t{});
  }
}

}  // namespace llmi

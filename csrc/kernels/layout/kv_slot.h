// Copies one slot's K and V of one head to another slot of the same sequence, bit for bit.
#pragma once

#include "kernels/layout/kv_layout.h"

namespace llmi {

// first, step: a thread's share of the dimensions; 0 and 1 are all.
LLMI_HD inline void CopyHeadSlot(const KvView& kv, const int32_t* block_table, int64_t head, int64_t from, int64_t to, int64_t first,
                                 int64_t step) {
  const uint8_t* k_source = KvTile(kv, block_table, head, from);
  uint8_t* k_target = KvTile(kv, block_table, head, to);
  const uint8_t* v_source = k_source + KvValueOffset(kv);
  uint8_t* v_target = k_target + KvValueOffset(kv);
  from %= kSlotsPerTile;
  to %= kSlotsPerTile;
  // Copies the elements of K and V, or their scales: num_rows of each.
  const auto copy = [&](bool in_pairs, const auto* k_from, auto* k_to, const auto* v_from, auto* v_to, int64_t num_rows) {
    for (int64_t row = first; row < num_rows; row += step) {
      k_to[KvKeyIndex(in_pairs, to, row)] = k_from[KvKeyIndex(in_pairs, from, row)];
      v_to[KvValueIndex(in_pairs, num_rows, to, row)] = v_from[KvValueIndex(in_pairs, num_rows, from, row)];
    }
  };
  const auto copy_elements = [&](auto element) {
    using Element = decltype(element);
    copy(kv.type == KvType::kBF16, reinterpret_cast<const Element*>(k_source), reinterpret_cast<Element*>(k_target),
         reinterpret_cast<const Element*>(v_source), reinterpret_cast<Element*>(v_target), kv.head_dim);
  };
  switch (kv.type) {
    case KvType::kInt8:
      copy_elements(uint8_t{});
      copy(false, KvTileScales(kv, k_source), KvTileScales(kv, k_target), KvTileScales(kv, v_source), KvTileScales(kv, v_target),
           KvNumScales(kv.head_dim));
      break;
    case KvType::kF8: copy_elements(uint8_t{}); break;
    case KvType::kF16:
    case KvType::kBF16: copy_elements(uint16_t{}); break;
    case KvType::kF32: copy_elements(uint32_t{});
  }
}

}  // namespace llmi

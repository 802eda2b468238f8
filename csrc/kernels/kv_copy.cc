#include "kernels/kv_copy.h"

#include <cstring>

#include "kernels/device.h"

namespace llmi {
namespace {

// K's elements or scales: rows of 16 lanes.
template <typename Element>
void CopyLane(const Element* source, Element* target, int64_t num_rows, int64_t from, int64_t to) {
  for (int64_t row = 0; row < num_rows; ++row) target[row * kSlotsPerTile + to] = source[row * kSlotsPerTile + from];
}

// V's elements or scales: 16 rows.
template <typename Element>
void CopyRow(const Element* source, Element* target, int64_t row_size, int64_t from, int64_t to) {
  std::memcpy(target + to * row_size, source + from * row_size, static_cast<size_t>(row_size) * sizeof(Element));
}

template <typename Element>
void CopySlot(const KvView& kv, const int32_t* block_table, int64_t head, int64_t from, int64_t to) {
  const uint8_t* k_source = KvTile(kv, block_table, head, from);
  uint8_t* k_target = KvTile(kv, block_table, head, to);
  const uint8_t* v_source = k_source + KvValueOffset(kv);
  uint8_t* v_target = k_target + KvValueOffset(kv);
  from %= kSlotsPerTile;
  to %= kSlotsPerTile;
  CopyLane(reinterpret_cast<const Element*>(k_source), reinterpret_cast<Element*>(k_target), kv.head_dim, from, to);
  CopyRow(reinterpret_cast<const Element*>(v_source), reinterpret_cast<Element*>(v_target), kv.head_dim, from, to);
  if constexpr (sizeof(Element) == 1) {
    CopyLane(KvTileScales(kv, k_source), KvTileScales(kv, k_target), KvNumScales(kv.head_dim), from, to);
    CopyRow(KvTileScales(kv, v_source), KvTileScales(kv, v_target), KvNumScales(kv.head_dim), from, to);
  }
}

}  // namespace

void KvCopySlot(const KernelContext& context, const KvView& kv, const int32_t* block_table, int64_t from, int64_t to) {
  if (context.device != nullptr) return context.device->KvCopySlot(kv, block_table, from, to);
  for (int64_t head = 0; head < kv.num_kv_heads; ++head) {
    switch (kv.element_bytes) {
      case 1: CopySlot<int8_t>(kv, block_table, head, from, to); break;
      case 2: CopySlot<uint16_t>(kv, block_table, head, from, to); break;
      default: CopySlot<uint32_t>(kv, block_table, head, from, to);
    }
  }
}

}  // namespace llmi

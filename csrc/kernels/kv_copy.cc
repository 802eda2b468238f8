#include "kernels/kv_copy.h"

#include <cstring>

namespace llmi {

void KvCopySlot(const KvView& kv, const int32_t* block_table, int64_t from, int64_t to) {
  const auto element = static_cast<size_t>(kv.element_bytes);
  const auto head_dim = static_cast<size_t>(kv.head_dim);
  const auto lane_from = static_cast<size_t>(from % kSlotsPerTile);
  const auto lane_to = static_cast<size_t>(to % kSlotsPerTile);
  for (int64_t head = 0; head < kv.num_kv_heads; ++head) {
    const uint8_t* source = KvTile(kv, block_table, head, from);
    uint8_t* target = KvTile(kv, block_table, head, to);
    for (size_t d = 0; d < head_dim; ++d) {  // K is [head_dim][16]
      std::memcpy(target + (d * kSlotsPerTile + lane_to) * element, source + (d * kSlotsPerTile + lane_from) * element, element);
    }
    std::memcpy(target + KvValueOffset(kv) + lane_to * head_dim * element, source + KvValueOffset(kv) + lane_from * head_dim * element,
                head_dim * element);
  }
}

}  // namespace llmi

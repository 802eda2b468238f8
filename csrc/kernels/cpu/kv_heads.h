// The loop over rows and heads that every table's kv_write shares.
#pragma once

#include "kernels/ops/attention.h"

namespace llmi {
namespace {

// One KV head of one row: its values, the tiles to write them to, and its slot in these.
struct KvHead {
  const float* k;
  const float* v;
  uint8_t* k_tile;
  uint8_t* v_tile;
  int64_t lane;
};

template <typename Write>
void ForEachKvHead(const KvWriteArgs& args, const AttentionSegment& segment, const KvRange& range, Write write) {
  const KvView& kv = args.kv;
  for (int64_t row = range.row_begin; row < range.row_end; ++row) {
    const int64_t slot = segment.base_len + row;
    for (int64_t head = range.head_begin; head < range.head_end; ++head) {
      uint8_t* k_tile = KvTile(kv, segment.block_table, head, slot);
      const int64_t offset = (segment.row_begin + row) * args.stride + head * kv.head_dim;
      write(KvHead{args.k + offset, args.v + offset, k_tile, k_tile + KvValueOffset(kv), slot % kSlotsPerTile});
    }
  }
}

}  // namespace
}  // namespace llmi

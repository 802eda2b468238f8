// kv_write, and the copy of a slot. Segments, their tables and row_segments are on the device; a row of segment -1 pads a launch.
#pragma once

#include "kernels/cpu/reference/kv_store.h"
#include "kernels/cuda/block.h"
#include "kernels/layout/kv_slot.h"
#include "kernels/ops/attention.h"

namespace llmi::cuda {

// Block x: a row; y: a KV head.
struct KvWriteKernel {
  KvWriteArgs args;
  const int32_t* row_segments;

  template <typename Visit>
  void ForEachPointer(const Visit& visit) const {
    visit(args.kv.base);
    visit(args.segments);
    visit(args.k);
    visit(args.v);
    visit(row_segments);
  }

  template <typename Block>
  LLMI_HD void operator()(const Block& block) const {
    if (row_segments[block.x] < 0) return;
    block.ForEachThread([&](int thread) {
      const KvView& kv = args.kv;
      const AttentionSegment& segment = args.segments[row_segments[block.x]];
      const int64_t slot = segment.base_len + block.x - segment.row_begin;
      uint8_t* k_tile = KvTile(kv, segment.block_table, block.y, slot);
      const int64_t offset = block.x * args.stride + block.y * kv.head_dim;
      for (int64_t part = thread; part < kv.head_dim / kKvScaleBlock; part += block.num_threads) {
        reference::StoreKeys(kv, args.k + offset + part * kKvScaleBlock, part, slot % kSlotsPerTile, k_tile);
        reference::StoreValues(kv, args.v + offset + part * kKvScaleBlock, part, slot % kSlotsPerTile, k_tile + KvValueOffset(kv));
      }
    });
  }
};

// Copies one slot's K and V of one layer to another slot of the same sequence. Block x: a KV head.
struct KvCopySlotKernel {
  KvView kv;
  const int32_t* block_table;
  int64_t from;
  int64_t to;

  template <typename Visit>
  void ForEachPointer(const Visit& visit) const {
    visit(kv.base);
    visit(block_table);
  }

  template <typename Block>
  LLMI_HD void operator()(const Block& block) const {
    block.ForEachThread([&](int thread) { CopyHeadSlot(kv, block_table, block.x, from, to, thread, block.num_threads); });
  }
};

}  // namespace llmi::cuda

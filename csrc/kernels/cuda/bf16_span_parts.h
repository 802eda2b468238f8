// The work items of Bf16SpanKernel, and the parts of K and V that a block loads one after the other: their addresses in memory and in a
// slot of shared memory, how they are copied, and which values are computed instead, as in span_parts.h.
#pragma once

#include <cstddef>

#include "core/bfloat16.h"
#include "kernels/cpu/reference/attention_path.h"
#include "kernels/cuda/attention_plan.h"
#include "kernels/cuda/bf16_matrices.h"
#include "kernels/cuda/block.h"
#include "kernels/cuda/kv_parts.h"
#include "kernels/layout/kv_layout.h"

namespace llmi::cuda {

struct Bf16SpanParts {
  static constexpr int kThreads = kBf16AttentionWarps * kWarpLanes;
  static constexpr int kQueries = kMatrixQueries;
  static constexpr int kTile = kSlotsPerTile;
  static constexpr int kTiles = kAttentionSpan / kSlotsPerTile;
  static constexpr int kKeyDims = 32;
  static constexpr int kKeyRow = kTile * 4;  // a pair of dimensions
  static constexpr int kKeyStride = kKeyDims / 2 * kKeyRow;
  static constexpr int kValueDims = 128;
  static constexpr int kValueTiles = 4;
  static constexpr int kValueRow =
      kValueDims * 4 + 32;  // a pair of positions; rows that are read at the same time begin in different banks
  static constexpr int kValueStride = kTile / 2 * kValueRow;
  static constexpr int kSlots = 3;
  static constexpr int kSlotBytes = kValueTiles * kValueStride;
  static_assert(kTiles * kKeyStride <= kSlotBytes);
  // When a piece of work is entered, the block is at V of the one before, and reads neither q nor what it has made of K any more.
  static_assert(kTiles / kValueTiles >= kSlots - 1);

  struct Work {
    RowGroup rows;
    int32_t group;
    int32_t span;
    int32_t kv_head;
    int32_t first;        // of its queries: pairs of a head and a row, head by head
    int32_t num_queries;  // of the group, for the KV head
    Sight sight;
    int32_t gathered;  // the first tile whose positions lie in other tiles, along a tree's path
    int32_t made;      // the first position that is not in the cache yet
    int32_t written;   // the first one that the block writes to the cache

    LLMI_HD int64_t Row(int query) const { return rows.row_begin + (first + query) % rows.num_rows; }
    LLMI_HD int64_t Head(int query, int64_t group_heads) const { return kv_head * group_heads + (first + query) / rows.num_rows; }
    LLMI_HD int NumQueries() const { return num_queries - first < kQueries ? num_queries - first : kQueries; }
    LLMI_HD int64_t LastRow() const { return rows.row_begin + rows.num_rows - 1; }
    LLMI_HD int FirstMade() const { return made > sight.begin ? made : sight.begin; }
    LLMI_HD int NumMade() const { return sight.end > FirstMade() ? sight.end - FirstMade() : 0; }
  };

  using Cut = KvParts<kKeyDims, kValueDims, kValueTiles>;
  using Part = Cut::Part;

  AttentionPlan plan;
  int64_t num_blocks;

  LLMI_HD int HeadDim() const { return plan.args.kv.head_dim; }
  LLMI_HD int64_t GroupHeads() const { return plan.args.num_heads / plan.args.kv.num_kv_heads; }
  LLMI_HD int NumKeyParts() const { return Cut{HeadDim()}.NumKeyParts(); }
  LLMI_HD int NumParts() const { return Cut{HeadDim()}.NumParts(); }
  LLMI_HD Part PartOf(int number) const { return Cut{HeadDim()}.PartOf(number); }
  LLMI_HD const AttentionSegment& Segment(const Work& work) const { return plan.args.segments[plan.row_segments[work.rows.row_begin]]; }

  // Queries of the launch's piece `index` from `first` on.
  LLMI_HD Work WorkOf(int64_t index, int first) const {
    const SpanItem item = plan.Item(index / plan.args.kv.num_kv_heads);
    Work work = {plan.groups[item.group],
                 item.group,
                 item.span,
                 static_cast<int32_t>(index % plan.args.kv.num_kv_heads),
                 first,
                 0,
                 {},
                 kTiles,
                 static_cast<int32_t>(kAttentionSpan),
                 static_cast<int32_t>(kAttentionSpan)};
    work.num_queries = work.rows.num_rows * static_cast<int>(GroupHeads());
    work.sight = Sight::Of(plan, work.rows, item.span);
    const AttentionSegment& segment = Segment(work);
    const int cached = Sight::Clip(segment.base_len, item.span);
    if (segment.parents != nullptr && !plan.makes_rows()) work.gathered = cached / kTile;
    if (plan.makes_rows()) work.made = cached;
    if (plan.makes_rows() && first == 0) work.written = Sight::Clip(plan.args.positions[work.rows.row_begin], item.span);
    return work;
  }

  // tiles: those of K that the work reads whole.
  template <typename Copies>
  LLMI_HD void CopyPart(const Work& work, const uint8_t* const* tiles, int number, int thread, Copies* copies, uint8_t* slot) const {
    const Part part = PartOf(number);
    const int row = thread / kWarpLanes;
    const int unit = thread % kWarpLanes * 16;
    const int64_t from = KvValueOffset(plan.args.kv) + (row * HeadDim() + part.dim_begin) * 4 + unit;
    LLMI_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int of_keys = (thread + i * kThreads) % (kKeyStride / 16) * 16;
      const int tile = part.is_key ? (thread + i * kThreads) / (kKeyStride / 16) : part.tile_begin + i;
      const bool wanted = tiles[tile] != nullptr && (part.is_key ? of_keys < part.num_dims / 2 * kKeyRow : unit < part.num_dims * 4);
      uint8_t* to = slot + (part.is_key ? tile * kKeyStride + of_keys : i * kValueStride + row * kValueRow + unit);
      copies->Copy(to, tiles[tile] + (part.is_key ? part.dim_begin / 2 * kKeyRow + of_keys : from), wanted);
    }
    const int begin = part.is_key || work.gathered > part.tile_begin ? work.gathered : part.tile_begin;
    const int end =
        part.is_key || work.sight.EndTile() < part.tile_begin + kValueTiles ? work.sight.EndTile() : part.tile_begin + kValueTiles;
    for (int tile = begin; tile < end; ++tile) Gather(work, part, tile, thread, slot);
  }

  // Whether some of the part is to be made when the rest of it has landed.
  LLMI_HD bool MakesSome(const Work& work, int number) const {
    const Part part = PartOf(number);
    if (work.NumMade() == 0) return false;
    return part.is_key || (work.FirstMade() < (part.tile_begin + kValueTiles) * kTile && work.sight.end > part.tile_begin * kTile);
  }
  // Those positions, two dimensions at a time. inverses: of the norms of K, from the first such position on.
  LLMI_HD void MakeSome(const Work& work, const float* inverses, int number, int thread, uint8_t* slot) const {
    const Part part = PartOf(number);
    const int first = work.FirstMade();
    const int begin = part.is_key || first > part.tile_begin * kTile ? first : part.tile_begin * kTile;
    const int tile_end = (part.tile_begin + kValueTiles) * kTile;
    const int end = part.is_key || work.sight.end < tile_end ? work.sight.end : tile_end;
    const int num_pairs = part.num_dims / 2;
    LLMI_ROLL
    for (int i = thread; i < (end - begin) * num_pairs; i += kThreads) {
      const int position = begin + i / num_pairs;
      const int pair = i % num_pairs;
      const int d = part.dim_begin + pair * 2;
      const int lane = position % kTile;
      const int64_t row = MadeRow(work, position);
      const int64_t to_slot = Segment(work).base_len + row - Segment(work).row_begin;
      const int to_lane = static_cast<int>(to_slot % kTile);
      uint8_t* to = position < work.written ? nullptr : KeyTile(work, to_slot);
      if (part.is_key) {
        const ProjectedHead key = plan.rows.Key(row, work.kv_head, inverses[position - first]);
        const uint32_t word = BothInOne(key.At(d), key.At(d + 1));
        *reinterpret_cast<uint32_t*>(slot + position / kTile * kKeyStride + pair * kKeyRow + lane * 4) = word;
        if (to != nullptr) *reinterpret_cast<uint32_t*>(to + d / 2 * kKeyRow + to_lane * 4) = word;
        continue;
      }
      const float* value = plan.rows.Value(row, work.kv_head) + d;
      uint8_t* here = slot + (position / kTile - part.tile_begin) * kValueStride + lane / 2 * kValueRow + pair * 8 + lane % 2 * 2;
      uint8_t* there = to == nullptr ? nullptr : to + KvValueOffset(plan.args.kv) + (to_lane / 2 * HeadDim() + d) * 4 + to_lane % 2 * 2;
      LLMI_UNROLL
      for (int j = 0; j < 2; ++j) {
        const uint16_t bits = FloatToBfloat16(value[j]);
        *reinterpret_cast<uint16_t*>(here + j * 4) = bits;
        if (there != nullptr) *reinterpret_cast<uint16_t*>(there + j * 4) = bits;
      }
    }
  }
  LLMI_HD static uint32_t BothInOne(float low, float high) { return FloatToBfloat16(low) | (uint32_t{FloatToBfloat16(high)} << 16); }
  // The step's row at a position that the group sees.
  LLMI_HD int64_t MadeRow(const Work& work, int position) const {
    const AttentionSegment& segment = Segment(work);
    return segment.row_begin + SlotOf(work, position) - segment.base_len;
  }
  LLMI_HD uint8_t* KeyTile(const Work& work, int64_t slot) const {
    return KvTile(plan.args.kv, Segment(work).block_table, work.kv_head, slot);
  }

 private:
  LLMI_HD int64_t SlotOf(const Work& work, int position) const {
    const int64_t row = work.LastRow();
    return reference::SlotOf(Segment(work), row - Segment(work).row_begin, plan.args.positions[row], work.span * kAttentionSpan + position);
  }

  LLMI_HD void Gather(const Work& work, const Part& part, int tile, int thread, uint8_t* slot) const {
    constexpr int kStep = kThreads / kTile;
    const int lane = thread % kTile;
    if (!work.sight.SomeSee(tile * kTile + lane)) return;
    const int64_t from_slot = SlotOf(work, tile * kTile + lane);
    const uint8_t* from = KeyTile(work, from_slot);
    const int from_lane = static_cast<int>(from_slot % kTile);
    if (part.is_key) {
      for (int pair = thread / kTile; pair < part.num_dims / 2; pair += kStep) {
        *reinterpret_cast<uint32_t*>(slot + tile * kKeyStride + pair * kKeyRow + lane * 4) =
            *reinterpret_cast<const uint32_t*>(from + (part.dim_begin / 2 + pair) * kKeyRow + from_lane * 4);
      }
      return;
    }
    const uint8_t* values = from + KvValueOffset(plan.args.kv) + (from_lane / 2 * HeadDim() + part.dim_begin) * 4 + from_lane % 2 * 2;
    uint8_t* to = slot + (tile - part.tile_begin) * kValueStride + lane / 2 * kValueRow + lane % 2 * 2;
    for (int d = thread / kTile; d < part.num_dims; d += kStep) {
      *reinterpret_cast<uint16_t*>(to + d * 4) = *reinterpret_cast<const uint16_t*>(values + d * 4);
    }
  }
};

}  // namespace llmi::cuda

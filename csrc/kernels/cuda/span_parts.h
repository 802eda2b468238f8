// The work items of a launch over spans, and the parts of K and V that a block loads one after the other (span_kernel.h): their addresses
// in memory and in a slot of shared memory, how they are copied, and which values are computed instead.
//
// A tree's path lies in other slots than its positions: it is gathered (GatherKeys, GatherValues). Or K and V of the step's rows are not in
// the cache yet (AttentionPlan::rows): then positions of the step are made from what the projections left, after the rest of the part has
// landed, and one block of a row writes its own to the cache. What a slot holds is what the cache will hold, in its type.
#pragma once

#include <cstddef>
#include <type_traits>

#include "kernels/cpu/reference/attention_path.h"
#include "kernels/cpu/reference/kv_store.h"
#include "kernels/cuda/async_copy.h"
#include "kernels/cuda/attention_plan.h"
#include "kernels/cuda/kv_parts.h"
#include "kernels/cuda/kv_words.h"
#include "kernels/layout/kv_layout.h"

namespace llmi::cuda {

constexpr int kSpanThreads = 64;

template <KvType kType, int kHeads>
struct SpanParts {
  static constexpr int kSize = static_cast<int>(KvTypeBytes(kType));
  using Element = std::conditional_t<kSize == 1, uint8_t, std::conditional_t<kSize == 2, uint16_t, uint32_t>>;
  static constexpr bool kScaled = kType == KvType::kInt8;
  static constexpr int kTile = kSlotsPerTile;
  static constexpr int kTiles = kAttentionSpan / kSlotsPerTile;
  // A part of K: of each tile 1,024 bytes, 16 for each thread; then q [head][dimension], and an int8 cache's scales.
  static constexpr int kKeyDims = 64 / kSize;
  static constexpr int kKeyRow = kTile * kSize;
  static constexpr int kKeyStride = kKeyDims * kKeyRow + kKeyRow;  // the last row is empty, so that tiles begin in different banks
  static constexpr int kKeyScales = kKeyDims / 16 * kTile * 2;     // bytes of a tile
  static constexpr int kQueriesAt = kTiles * kKeyStride;
  static constexpr int kKeyScalesAt = kQueriesAt + kHeads * kKeyDims * 4;
  // A part of V: rows of positions; then the scales of all their dimensions.
  static constexpr int kValueDims = 2 * kSpanThreads;
  static constexpr int kValueTiles = kScaled ? 4 : 8 / kSize;
  static constexpr int kValueRow = kValueDims * kSize;
  static constexpr int kValueScalesAt = kValueTiles * kTile * kValueRow;
  static constexpr int kSlots = 3;
  static constexpr int kSlotBytes = kKeyScalesAt + (kScaled ? kTiles * kKeyScales : 0);
  static_assert(kValueScalesAt + (kScaled ? kValueTiles * kTile * kMaxHeadDim / 16 * 2 : 0) <= kSlotBytes);

  struct Work {
    int64_t row;
    int32_t group;
    int32_t span;
    int32_t kv_head;
    int32_t head_begin;
    int32_t num_heads;
    int32_t begin, end;  // the positions that are seen, from the span's begin on
    int32_t gathered;    // the first tile whose positions lie in other tiles, along a tree's path
    int32_t made;        // the first position that is not in the cache yet
    bool writes;         // the row's own position, which is the last one seen, to the cache
  };

  using Cut = KvParts<kKeyDims, kValueDims, kValueTiles>;
  using Part = typename Cut::Part;

  AttentionPlan plan;
  int64_t num_blocks;
  int64_t chunks;  // of a KV head's heads

  LLMI_HD int HeadDim() const { return plan.args.kv.head_dim; }
  LLMI_HD int NumKeyParts() const { return Cut{HeadDim()}.NumKeyParts(); }
  LLMI_HD int NumParts() const { return Cut{HeadDim()}.NumParts(); }
  LLMI_HD Part PartOf(int number) const { return Cut{HeadDim()}.PartOf(number); }

  LLMI_HD const AttentionSegment& Segment(const Work& work) const { return plan.args.segments[plan.row_segments[work.row]]; }

  LLMI_HD Work WorkOf(int64_t index) const {
    const AttentionArgs& args = plan.args;
    const int heads = static_cast<int>(args.num_heads / args.kv.num_kv_heads);
    const int chunk = static_cast<int>(index % chunks);
    const int kv_head = static_cast<int>(index / chunks % args.kv.num_kv_heads);
    const SpanItem item = plan.Item(index / (chunks * args.kv.num_kv_heads));
    const int64_t row = plan.groups[item.group].row_begin;
    const int64_t span = item.span * kAttentionSpan;
    const AttentionSegment& segment = args.segments[plan.row_segments[row]];
    const int64_t first = AttentionFirstVisible(args, row) - span;
    const int64_t end = args.positions[row] + 1 - span;
    const int cached = InSpan(segment.base_len - span);
    const int left = heads - chunk * kHeads;
    return {row,
            item.group,
            item.span,
            kv_head,
            kv_head * heads + chunk * kHeads,
            left < kHeads ? left : kHeads,
            InSpan(first),
            InSpan(end),
            segment.parents == nullptr || plan.makes_rows() ? kTiles : cached / kTile,
            plan.makes_rows() ? cached : static_cast<int32_t>(kAttentionSpan),
            plan.makes_rows() && chunk == 0 && end <= kAttentionSpan};
  }
  LLMI_HD static int32_t InSpan(int64_t position) {
    return static_cast<int32_t>(position < 0 ? 0 : position < kAttentionSpan ? position : kAttentionSpan);
  }
  LLMI_HD static int FirstMade(const Work& work) { return work.made > work.begin ? work.made : work.begin; }

  // tiles: those of K that the work reads whole. inverses: of the norms of its heads.
  template <typename Copies>
  LLMI_HD void CopyPart(const Work& work, const uint8_t* const* tiles, const float* inverses, int number, int thread, Copies* copies,
                        uint8_t* slot) const {
    const Part part = PartOf(number);
    const int end_tile = (work.end + kTile - 1) / kTile;
    if (part.is_key) {
      CopyKeys(tiles, part.dim_begin, part.num_dims, thread, copies, slot);
      CopyQueries(work, inverses, part, thread, copies, slot);
      for (int tile = work.gathered; tile < end_tile; ++tile) GatherKeys(work, part.dim_begin, part.num_dims, tile, thread, slot);
      return;
    }
    CopyValues(tiles + part.tile_begin, part, thread, copies, slot);
    for (int t = 0; t < kValueTiles; ++t) {
      const int tile = part.tile_begin + t;
      if (tile >= work.gathered && tile < end_tile) GatherValues(work, part, tile, thread, copies, slot);
    }
  }

  // Whether some of the part is to be made when the rest of it has landed.
  LLMI_HD bool MakesSome(const Work& work, int number) const {
    const Part part = PartOf(number);
    const int first = FirstMade(work);
    if (part.is_key) return first < work.end;
    return first < work.end && first < (part.tile_begin + kValueTiles) * kTile && work.end > part.tile_begin * kTile;
  }
  // Those positions, 16 dimensions at a time. inverses: of the norms of K, from the first such position on.
  LLMI_HD void MakeSome(const Work& work, const float* inverses, int number, int thread, uint8_t* slot) const {
    const Part part = PartOf(number);
    const int first = FirstMade(work);
    const int begin = part.is_key || first > part.tile_begin * kTile ? first : part.tile_begin * kTile;
    const int tile_end = (part.tile_begin + kValueTiles) * kTile;
    const int end = part.is_key || work.end < tile_end ? work.end : tile_end;
    const int num_sixteens = part.num_dims / 16;
    LLMI_ROLL
    for (int i = thread; i < (end - begin) * num_sixteens; i += kSpanThreads) {
      const int position = begin + i / num_sixteens;
      const int d = i % num_sixteens * 16;
      const int64_t row = MadeRow(work, position);
      float values[16];
      if (part.is_key) {
        const ProjectedHead key = plan.rows.Key(row, work.kv_head, inverses[position - first]);
        LLMI_UNROLL
        for (int j = 0; j < 16; ++j) values[j] = key.At(part.dim_begin + d + j);
        const int tile = position / kTile;
        const int lane = position % kTile;
        reference::StoreElements(
            kType, values, slot + tile * kKeyStride, [&](int64_t j) { return (d + j) * kTile + lane; },
            reinterpret_cast<uint16_t*>(slot + kKeyScalesAt + tile * kKeyScales) + d / 16 * kTile + lane);
      } else {
        const float* value = plan.rows.Value(row, work.kv_head) + part.dim_begin + d;
        LLMI_UNROLL
        for (int j = 0; j < 16; ++j) values[j] = value[j];
        const int in_slot = position - part.tile_begin * kTile;
        reference::StoreElements(
            kType, values, slot + in_slot * kValueRow, [&](int64_t j) { return d + j; },
            reinterpret_cast<uint16_t*>(slot + kValueScalesAt) + in_slot * (HeadDim() / 16) + (part.dim_begin + d) / 16);
      }
      if (!work.writes || position != work.end - 1) continue;
      KvView kv = plan.args.kv;
      kv.type = kType;
      StoreInCache(kv, Segment(work), row, work.kv_head, (part.dim_begin + d) / 16, values, part.is_key);
    }
  }
  // The step's row at a position of the work's row.
  LLMI_HD int64_t MadeRow(const Work& work, int position) const {
    const AttentionSegment& segment = Segment(work);
    return segment.row_begin + PathSlot(work, position) - segment.base_len;
  }

 private:
  template <typename Copies>
  LLMI_HD void CopyQueries(const Work& work, const float* inverses, const Part& part, int thread, Copies* copies, uint8_t* slot) const {
    if (plan.makes_rows()) {
      auto* queries = reinterpret_cast<float*>(slot + kQueriesAt);
      LLMI_UNROLL
      for (int unit = thread; unit < kHeads * kKeyDims; unit += kSpanThreads) {
        const int head = unit / kKeyDims;
        const int d = unit % kKeyDims;
        if (head >= work.num_heads || d >= part.num_dims) continue;
        queries[unit] = plan.rows.Query(work.row, work.head_begin + head, inverses[head]).At(part.dim_begin + d);
      }
      return;
    }
    const float* q = plan.args.q + work.row * plan.args.q_stride + work.head_begin * HeadDim() + part.dim_begin;
    for (int unit = thread; unit < kHeads * kKeyDims / 4; unit += kSpanThreads) {
      const int head = unit / (kKeyDims / 4);
      const int d = unit % (kKeyDims / 4) * 4;
      if (head < work.num_heads && d < part.num_dims) copies->Copy(slot + kQueriesAt + unit * 16, q + head * HeadDim() + d);
    }
  }

  template <typename Copies>
  LLMI_HD void CopyKeys(const uint8_t* const* tiles, int dim_begin, int num_dims, int thread, Copies* copies, uint8_t* slot) const {
    const bool has_dims = thread < num_dims * kSize;
    LLMI_UNROLL
    for (int tile = 0; tile < kTiles; ++tile) {
      copies->Copy(slot + tile * kKeyStride + thread * 16, tiles[tile] + dim_begin * kKeyRow + thread * 16,
                   has_dims && tiles[tile] != nullptr);
    }
    if constexpr (kScaled) {
      for (int unit = thread; unit < kTiles * kKeyScales / 16; unit += kSpanThreads) {
        const uint8_t* tile = tiles[unit / (kKeyScales / 16)];
        const int part = unit % (kKeyScales / 16);
        if (tile == nullptr || part >= num_dims / 16 * 2) continue;
        copies->Copy(slot + kKeyScalesAt + unit * 16, tile + kTile * HeadDim() + dim_begin * 2 + part * 16);
      }
    }
  }

  template <typename Copies>
  LLMI_HD void CopyValues(const uint8_t* const* tiles, const Part& part, int thread, Copies* copies, uint8_t* slot) const {
    constexpr int kUnits = kValueRow / 16;        // of a row
    constexpr int kRows = kSpanThreads / kUnits;  // that the threads take at once
    const int at = thread / kUnits * HeadDim() * kSize + part.dim_begin * kSize + thread % kUnits * 16;
    const bool has_dims = thread % kUnits * 16 < part.num_dims * kSize;
    const int64_t values = KvValueOffset(plan.args.kv);
    LLMI_UNROLL
    for (int t = 0; t < kValueTiles; ++t) {
      const bool wanted = has_dims && tiles[t] != nullptr;
      const uint8_t* from = tiles[t] + values + at;
      LLMI_UNROLL
      for (int row = 0; row < kTile; row += kRows) {
        copies->Copy(slot + (t * kTile + row) * kValueRow + thread * 16, from + row * HeadDim() * kSize, wanted);
      }
      if constexpr (kScaled) {
        const int num_units = HeadDim() / 16 * 2;
        const uint8_t* scales = tiles[t] + values + kTile * HeadDim();
        for (int unit = thread; unit < num_units; unit += kSpanThreads) {
          copies->Copy(slot + kValueScalesAt + (t * num_units + unit) * 16, scales + unit * 16, tiles[t] != nullptr);
        }
      }
    }
  }

  // Where a position of the row's path lies in its sequence.
  LLMI_HD int64_t PathSlot(const Work& work, int position) const {
    const AttentionSegment& segment = Segment(work);
    return reference::SlotOf(segment, work.row - segment.row_begin, plan.args.positions[work.row], work.span * kAttentionSpan + position);
  }
  // The K tile of a path's position, and which of its slots.
  struct Slot {
    const uint8_t* tile;
    int lane;
  };
  LLMI_HD Slot SlotOf(const Work& work, int position) const {
    const int64_t slot = PathSlot(work, position);
    return {KvTile(plan.args.kv, Segment(work).block_table, work.kv_head, slot), static_cast<int>(slot % kTile)};
  }
  // Of an element, or of a scale.
  template <typename T>
  LLMI_HD static void CopyOne(uint8_t* to, const uint8_t* from) {
    *reinterpret_cast<T*>(to) = *reinterpret_cast<const T*>(from);
  }

  LLMI_HD void GatherKeys(const Work& work, int dim_begin, int num_dims, int tile, int thread, uint8_t* slot) const {
    const int lane = thread % kTile;
    const int position = tile * kTile + lane;
    if (position < work.begin || position >= work.end) return;
    const Slot source = SlotOf(work, position);
    uint8_t* keys = slot + tile * kKeyStride + lane * kSize;
    LLMI_ROLL
    for (int d = thread / kTile; d < num_dims; d += kSpanThreads / kTile) {
      CopyOne<Element>(keys + d * kKeyRow, source.tile + (dim_begin + d) * kKeyRow + source.lane * kSize);
      if constexpr (kScaled) {
        if (d >= num_dims / 16) continue;
        CopyOne<uint16_t>(slot + kKeyScalesAt + tile * kKeyScales + (d * kTile + lane) * 2,
                          source.tile + kTile * HeadDim() + ((dim_begin / 16 + d) * kTile + source.lane) * 2);
      }
    }
  }

  template <typename Copies>
  LLMI_HD void GatherValues(const Work& work, const Part& part, int tile, int thread, Copies* copies, uint8_t* slot) const {
    const int lane = thread % kTile;
    const int position = tile * kTile + lane;
    if (position < work.begin || position >= work.end) return;
    const Slot source = SlotOf(work, position);
    const uint8_t* values = source.tile + KvValueOffset(plan.args.kv);
    const int in_slot = (tile - part.tile_begin) * kTile + lane;
    constexpr int kThreads = kSpanThreads / kTile;  // of a position
    LLMI_ROLL
    for (int at = thread / kTile * 16; at < part.num_dims * kSize; at += kThreads * 16) {
      copies->Copy(slot + in_slot * kValueRow + at, values + (source.lane * HeadDim() + part.dim_begin) * kSize + at);
    }
    if constexpr (kScaled) {
      const int num_scales = HeadDim() / 16;
      LLMI_ROLL
      for (int s = thread / kTile; s < num_scales; s += kThreads) {
        CopyOne<uint16_t>(slot + kValueScalesAt + (in_slot * num_scales + s) * 2,
                          values + kTile * HeadDim() + (source.lane * num_scales + s) * 2);
      }
    }
  }
};

}  // namespace llmi::cuda

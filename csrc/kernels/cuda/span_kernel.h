// paged_attention over an fp16, fp32, int8 or fp8 cache, in the CPU's order (kernels/ops/attention.h); a bf16 cache has kernels of its own
// (bf16_attention_kernels.h).
//
// A piece of work is one span of one row, for up to eight heads of a KV head, which share each element of K and V that is read. Each block
// takes pieces of work from the launch's list, one after the other. It reads their K and V as a stream of parts: K by some dimensions of
// all 256 positions, with those of q; then V by some positions of up to 128 dimensions. Copies run two parts ahead of the sums, into the
// next piece of work, too. A thread has four positions of the scores and two dimensions of the values, of all heads: sums that no other
// thread has a part in, in the order of dimensions and of positions.
#pragma once

#include <cstddef>
#include <type_traits>

#include "core/scalar_math.h"
#include "kernels/cpu/reference/attention_path.h"
#include "kernels/cpu/reference/lanes.h"
#include "kernels/cuda/async_copy.h"
#include "kernels/cuda/attention_plan.h"
#include "kernels/cuda/kv_words.h"
#include "kernels/cuda/span_merge.h"
#include "kernels/layout/kv_layout.h"
#include "kernels/ops/attention_score.h"

namespace llmi::cuda {

constexpr int kSpanThreads = 64;
constexpr int kMostSpanHeads = 8;
constexpr int kSpanBlocks = 4;  // that a multiprocessor of 228 KB of shared memory has room for, with up to four heads

template <KvType kType, int kHeads>
struct SpanKernel {
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
  };
  struct Shared {
    alignas(16) Array<Array<uint8_t, kSlotBytes>, kSlots> slots;
    union {
      alignas(16) Array<Array<float, kAttentionSpan>, kHeads> weights;
      SpanMerge<kHeads> merge;
    };
    Array<float[16], kHeads> peaks;
    Array<float[16], kHeads> sums;
    Array<const uint8_t*, kTiles> tiles[2];  // of K; null: not seen, or gathered
    Work works[2];                           // that which is summed, and that which is copied
  };
  static constexpr size_t kSharedBytes = sizeof(Shared);
  static constexpr int kMostRegisters = 160;  // shared memory, not registers, bounds a multiprocessor's blocks

  // A lane's sums.
  struct Sums {
    Array<float[4], kHeads> scores;
    Array<float[2], kHeads> values;
  };

  AttentionPlan plan;
  int64_t num_blocks;
  int64_t chunks;  // of a KV head's heads

  template <typename Visit>
  void ForEachPointer(const Visit& visit) const {
    plan.ForEachPointer(visit);
  }

  template <typename Block>
  LLMI_HD void operator()(const Block& block) const {
    Shared& shared = *reinterpret_cast<Shared*>(block.shared);
    const int64_t all = plan.NumItems() * plan.args.kv.num_kv_heads * chunks;
    const int num_works = static_cast<int>(all <= block.x ? 0 : (all - block.x + num_blocks - 1) / num_blocks);
    AsyncCopies<Block> copies;
    Place next = {0, 0};  // of the copies
    int next_slot = 0;
    const auto copy_next = [&] {
      if (next.work < num_works) {
        if (next.part == 0) Enter(block, shared, next.work);
        block.ForEachWarp([&](const auto& warp) {
          warp.ForEachLane([&](int lane) { CopyPart(shared, next, warp.index * kWarpLanes + lane, &copies, shared.slots[next_slot]); });
        });
      }
      copies.Commit();
      next = After(next);
      next_slot = (next_slot + 1) % kSlots;
    };
    typename Block::template PerWarp<typename Block::Warp::template PerLane<Sums>> sums;
    int slot = 0;
    int ahead = 0;
    LLMI_ROLL
    for (Place place = {0, 0}; place.work < num_works;) {
      const bool is_ahead = ahead == kSlots - 1;
      if (is_ahead) {
        copies.template Wait<kSlots - 2>();
        block.Barrier();  // the part is there, and no thread reads the slot of the one before
      }
      copy_next();
      if (!is_ahead) {
        ++ahead;
        continue;
      }
      block.ForEachWarp([&](const auto& warp) {
        warp.ForEachLane([&](int lane) { AddPart(shared, place, warp.index * kWarpLanes + lane, shared.slots[slot], &sums[warp][lane]); });
      });
      if (place.part == NumKeyParts() - 1) Weigh(block, shared, place);
      if (place.part == NumParts() - 1) Finish(block, shared, place);
      slot = (slot + 1) % kSlots;
      place = After(place);
    }
  }

 private:
  // Part `part` of the block's piece of work `work`.
  struct Place {
    int work;
    int part;
  };
  LLMI_HD int HeadDim() const { return plan.args.kv.head_dim; }
  LLMI_HD int NumKeyParts() const { return (HeadDim() + kKeyDims - 1) / kKeyDims; }
  LLMI_HD int NumParts() const { return NumKeyParts() + (HeadDim() + kValueDims - 1) / kValueDims * (kTiles / kValueTiles); }
  LLMI_HD Place After(Place place) const {
    return place.part + 1 < NumParts() ? Place{place.work, place.part + 1} : Place{place.work + 1, 0};
  }
  // What a part of V holds.
  struct ValuePart {
    int dim_begin;
    int num_dims;
    int tile_begin;
  };
  LLMI_HD ValuePart ValuesOf(int part) const {
    constexpr int kPerPass = kTiles / kValueTiles;
    const int index = part - NumKeyParts();
    const int dim_begin = index / kPerPass * kValueDims;
    const int num_dims = HeadDim() - dim_begin < kValueDims ? HeadDim() - dim_begin : kValueDims;
    return {dim_begin, num_dims, index % kPerPass * kValueTiles};
  }

  LLMI_HD Work WorkOf(int64_t index) const {
    const AttentionArgs& args = plan.args;
    const int heads = static_cast<int>(args.num_heads / args.kv.num_kv_heads);
    const int chunk = static_cast<int>(index % chunks);
    const int kv_head = static_cast<int>(index / chunks % args.kv.num_kv_heads);
    const SpanItem item = plan.Item(index / (chunks * args.kv.num_kv_heads));
    const int64_t row = plan.groups[item.group].row_begin;
    const int64_t span = item.span * kAttentionSpan;
    const int64_t first = AttentionFirstVisible(args, row) - span;
    const int64_t end = args.positions[row] + 1 - span;
    const AttentionSegment& segment = args.segments[plan.row_segments[row]];
    const int64_t path = segment.parents == nullptr ? kAttentionSpan : segment.base_len - span;
    const int left = heads - chunk * kHeads;
    return {row,
            item.group,
            item.span,
            kv_head,
            kv_head * heads + chunk * kHeads,
            left < kHeads ? left : kHeads,
            static_cast<int32_t>(first > 0 ? first : 0),
            static_cast<int32_t>(end < kAttentionSpan ? end : kAttentionSpan),
            static_cast<int32_t>(path < 0                ? 0
                                 : path < kAttentionSpan ? path / kTile
                                                         : kTiles)};
  }

  // Finds the tiles of the block's next piece of work.
  template <typename Block>
  LLMI_HD void Enter(const Block& block, Shared& shared, int number) const {
    block.ForEachThread([&](int tile) {
      if (tile >= kTiles) return;
      const Work work = WorkOf(block.x + number * num_blocks);
      if (tile == 0) shared.works[number % 2] = work;
      const bool is_whole = (tile + 1) * kTile > work.begin && tile * kTile < work.end && tile < work.gathered;
      const AttentionSegment& segment = plan.args.segments[plan.row_segments[work.row]];
      shared.tiles[number % 2][tile] =
          is_whole ? KvTile(plan.args.kv, segment.block_table, work.kv_head, work.span * kAttentionSpan + tile * kTile) : nullptr;
    });
  }

  template <typename Copies>
  LLMI_HD void CopyPart(const Shared& shared, Place place, int thread, Copies* copies, uint8_t* slot) const {
    const Work& work = shared.works[place.work % 2];
    const uint8_t* const* tiles = shared.tiles[place.work % 2];
    const int end_tile = (work.end + kTile - 1) / kTile;
    if (place.part >= NumKeyParts()) {
      const ValuePart part = ValuesOf(place.part);
      CopyValues(tiles + part.tile_begin, part, thread, copies, slot);
      for (int t = 0; t < kValueTiles; ++t) {
        const int tile = part.tile_begin + t;
        if (tile >= work.gathered && tile < end_tile) GatherValues(work, part, tile, thread, copies, slot);
      }
      return;
    }
    const int dim_begin = place.part * kKeyDims;
    const int num_dims = HeadDim() - dim_begin < kKeyDims ? HeadDim() - dim_begin : kKeyDims;
    CopyKeys(tiles, dim_begin, num_dims, thread, copies, slot);
    const float* q = plan.args.q + work.row * plan.args.q_stride + work.head_begin * HeadDim() + dim_begin;
    for (int unit = thread; unit < kHeads * kKeyDims / 4; unit += kSpanThreads) {
      const int head = unit / (kKeyDims / 4);
      const int d = unit % (kKeyDims / 4) * 4;
      if (head < work.num_heads && d < num_dims) copies->Copy(slot + kQueriesAt + unit * 16, q + head * HeadDim() + d);
    }
    for (int tile = work.gathered; tile < end_tile; ++tile) GatherKeys(work, dim_begin, num_dims, tile, thread, slot);
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
  LLMI_HD void CopyValues(const uint8_t* const* tiles, const ValuePart& part, int thread, Copies* copies, uint8_t* slot) const {
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

  // The K tile of a path's position, and which of its slots.
  struct Slot {
    const uint8_t* tile;
    int lane;
  };
  LLMI_HD Slot SlotOf(const Work& work, int position) const {
    const AttentionSegment& segment = plan.args.segments[plan.row_segments[work.row]];
    const int64_t slot =
        reference::SlotOf(segment, work.row - segment.row_begin, plan.args.positions[work.row], work.span * kAttentionSpan + position);
    return {KvTile(plan.args.kv, segment.block_table, work.kv_head, slot), static_cast<int>(slot % kTile)};
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
  LLMI_HD void GatherValues(const Work& work, const ValuePart& part, int tile, int thread, Copies* copies, uint8_t* slot) const {
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

  LLMI_HD void AddPart(Shared& shared, Place place, int thread, const uint8_t* slot, Sums* sums) const {
    const Work& work = shared.works[place.work % 2];
    if (place.part >= NumKeyParts()) return AddValues(shared, work, ValuesOf(place.part), thread, slot, sums);
    if (place.part == 0) {
      LLMI_UNROLL
      for (int head = 0; head < kHeads; ++head) {
        LLMI_UNROLL
        for (int i = 0; i < 4; ++i) sums->scores[head][i] = 0.0f;
      }
    }
    AddScores(HeadDim() - place.part * kKeyDims, thread, slot, sums);
    if (place.part < NumKeyParts() - 1) return;
    LLMI_UNROLL
    for (int head = 0; head < kHeads; ++head) {
      const float* of = sums->scores[head];
      *reinterpret_cast<Words<float, 4>*>(&shared.weights[head][thread * 4]) = {{of[0], of[1], of[2], of[3]}};
    }
  }

  // The thread's four positions, and the part's dimensions; a part may have fewer than there are left.
  LLMI_HD static void AddScores(int dims_left, int thread, const uint8_t* slot, Sums* sums) {
    const uint8_t* keys = slot + thread / 4 * kKeyStride + thread % 4 * 4 * kSize;
    const auto* queries = reinterpret_cast<const float*>(slot + kQueriesAt);
    LLMI_ROLL
    for (int begin = 0; begin < kKeyDims && begin < dims_left; begin += 16) {
      float scales[4];
      if constexpr (kScaled) {
        WidenElements<KvType::kF16, 4>(slot + kKeyScalesAt + thread / 4 * kKeyScales + begin * 2 + thread % 4 * 8, scales);
      }
      LLMI_UNROLL
      for (int d = 0; d < 16; d += 4) {
        Array<Words<float, 4>, kHeads> q;
        LLMI_UNROLL
        for (int head = 0; head < kHeads; ++head)
          q[head] = *reinterpret_cast<const Words<float, 4>*>(queries + head * kKeyDims + begin + d);
        LLMI_UNROLL
        for (int i = 0; i < 4; ++i) {
          float k[4];
          WidenElements<kType, 4>(keys + (begin + d + i) * kKeyRow, k);
          LLMI_UNROLL
          for (int p = 0; p < 4; ++p) {
            if constexpr (kScaled) k[p] = k[p] * scales[p];
            LLMI_UNROLL
            for (int head = 0; head < kHeads; ++head) sums->scores[head][p] = Fma(k[p], q[head].of[i], sums->scores[head][p]);
          }
        }
      }
    }
  }

  // The thread's two dimensions, and the part's positions.
  LLMI_HD void AddValues(const Shared& shared, const Work& work, const ValuePart& part, int thread, const uint8_t* slot, Sums* sums) const {
    const int d = thread * 2;
    if (d >= part.num_dims) return;
    if (part.tile_begin == 0) {
      LLMI_UNROLL
      for (int head = 0; head < kHeads; ++head) sums->values[head][0] = sums->values[head][1] = 0.0f;
    }
    const uint8_t* values = slot + d * kSize;
    const uint8_t* scales = slot + kValueScalesAt + (part.dim_begin + d) / 16 * 2;
    // The weights of a position are those of `at` behind each head's first.
    const auto add = [&](int in_slot, const auto& weight) {
      float v[2];
      WidenElements<kType, 2>(values + in_slot * kValueRow, v);
      if constexpr (kScaled) {
        const float scale = HalfBitsToFloat(*reinterpret_cast<const uint16_t*>(scales + in_slot * (HeadDim() / 16 * 2)));
        v[0] = v[0] * scale;
        v[1] = v[1] * scale;
      }
      LLMI_UNROLL
      for (int head = 0; head < kHeads; ++head) {
        sums->values[head][0] = Fma(weight(head), v[0], sums->values[head][0]);
        sums->values[head][1] = Fma(weight(head), v[1], sums->values[head][1]);
      }
    };
    LLMI_ROLL
    for (int t = 0; t < kValueTiles; ++t) {
      const int first = (part.tile_begin + t) * kTile;
      if (first >= work.begin && first + kTile <= work.end) {
        LLMI_UNROLL
        for (int j = 0; j < kTile; j += 4) {
          Array<Words<float, 4>, kHeads> weights;
          LLMI_UNROLL
          for (int head = 0; head < kHeads; ++head)
            weights[head] = *reinterpret_cast<const Words<float, 4>*>(&shared.weights[head][first + j]);
          LLMI_UNROLL
          for (int i = 0; i < 4; ++i) add(t * kTile + j + i, [&](int head) { return weights[head].of[i]; });
        }
        continue;
      }
      LLMI_ROLL
      for (int j = 0; j < kTile; ++j) {
        if (first + j < work.begin || first + j >= work.end) continue;
        add(t * kTile + j, [&](int head) { return shared.weights[head][first + j]; });
      }
    }
    if (part.tile_begin + kValueTiles < kTiles) return;
    LLMI_UNROLL
    for (int head = 0; head < kHeads; ++head) {
      if (head >= work.num_heads) break;
      float* partial = plan.Partial(work.row, work.head_begin + head, work.span) + part.dim_begin + d;
      *reinterpret_cast<Words<float, 2>*>(partial) = {{sums->values[head][0], sums->values[head][1]}};
    }
  }

  // The scores' last steps, their maxima, exponentials, and the sums of these; in lanes of 16 positions each.
  template <typename Block>
  LLMI_HD void Weigh(const Block& block, Shared& shared, Place place) const {
    block.Barrier();
    const Work& work = shared.works[place.work % 2];
    const auto for_each_lane = [&](int thread, const auto& body) {
      for (int i = thread; i < work.num_heads * 16; i += kSpanThreads) {
        // The first position that is seen, and is the lane's.
        body(i / 16, i % 16, work.begin + (i % 16 - work.begin % 16 + 16) % 16);
      }
    };
    block.ForEachThread([&](int thread) {
      for_each_lane(thread, [&](int head, int lane, int first) {
        float peak = reference::kMinusInfinity;
        LLMI_ROLL
        for (int j = first; j < work.end; j += 16) {
          const float score = FinishedScore(plan.args, work.head_begin + head, work.span * kAttentionSpan + j, shared.weights[head][j]);
          shared.weights[head][j] = score;
          peak = reference::Max(peak, score);
        }
        shared.peaks[head][lane] = peak;
      });
    });
    block.ForEachThread([&](int thread) {
      for_each_lane(thread, [&](int head, int lane, int first) {
        const float peak = Peak(shared.peaks[head]);
        float sum = 0.0f;
        LLMI_ROLL
        for (int j = first; j < work.end; j += 16) {
          const float weight = ExpF32(shared.weights[head][j] - peak);
          shared.weights[head][j] = weight;
          sum = sum + weight;
        }
        shared.sums[head][lane] = sum;
      });
    });
  }
  LLMI_HD static float Peak(const float* lanes) {
    float peak = lanes[0];
    for (int i = 1; i < 16; ++i) peak = reference::Max(peak, lanes[i]);
    return peak;
  }

  template <typename Block>
  LLMI_HD void Finish(const Block& block, Shared& shared, Place place) const {
    const Work& work = shared.works[place.work % 2];
    block.ForEachThread([&](int head) {
      if (head >= work.num_heads) return;
      float* partial = plan.Partial(work.row, work.head_begin + head, work.span) + HeadDim();
      partial[0] = Peak(shared.peaks[head]);
      partial[1] = reference::FoldSum(shared.sums[head]);
    });
    shared.merge.FinishSpan(block, plan, plan.groups[work.group], work.head_begin, work.num_heads,
                            plan.counts + work.group * plan.args.num_heads + work.head_begin);
  }
};

}  // namespace llmi::cuda

// paged_attention over an fp16, fp32, int8 or fp8 cache, in the CPU's order (kernels/ops/attention.h); a bf16 cache has kernels of its own
// (bf16_span_kernel.h).
//
// A piece of work is one span of one row, for up to eight heads of a KV head, which share each element of K and V that is read. Each block
// takes pieces of work from the launch's list, one after the other. It reads their K and V as a stream of parts: K by some dimensions of
// all 256 positions, with those of q; then V by some positions of up to 128 dimensions. Copies run two parts ahead of the sums, into the
// next piece of work, too. A thread has four positions of the scores and two dimensions of the values, of all heads: sums that no other
// thread has a part in, in the order of dimensions and of positions.
//
// The launch may begin with what the projections left and end with what the output projection reads (AttentionPlan).
#pragma once

#include <cstddef>

#include "core/scalar_math.h"
#include "kernels/cpu/reference/attention_path.h"
#include "kernels/cpu/reference/lanes.h"
#include "kernels/cuda/span_merge.h"
#include "kernels/cuda/span_parts.h"
#include "kernels/ops/attention_score.h"

namespace llmi::cuda {

constexpr int kSpanBlocks = 4;  // that a multiprocessor of 228 KB of shared memory has room for, with up to four heads

template <KvType kType, int kHeads>
struct SpanKernel : SpanParts<kType, kHeads> {
  using Parts = SpanParts<kType, kHeads>;
  using Parts::kQueriesAt, Parts::kKeyScalesAt, Parts::kValueTiles, Parts::kValueRow, Parts::kValueScalesAt, Parts::kSlots;
  using Parts::kSize, Parts::kScaled, Parts::kTile, Parts::kTiles, Parts::kKeyDims, Parts::kKeyRow, Parts::kKeyStride, Parts::kKeyScales;
  using Parts::plan, Parts::num_blocks, Parts::chunks, Parts::HeadDim, Parts::NumKeyParts, Parts::NumParts, Parts::PartOf;
  using typename Parts::Part;
  using typename Parts::Work;

  struct Shared {
    alignas(16) Array<Array<uint8_t, Parts::kSlotBytes>, kSlots> slots;
    union {
      alignas(16) Array<Array<float, kAttentionSpan>, kHeads> weights;
      SpanMerge<kHeads> merge;
    };
    Array<float[16], kHeads> peaks;
    Array<float[16], kHeads> sums;
    Array<const uint8_t*, kTiles> tiles[2];  // of K; null: not seen, or gathered
    Work works[2];                           // that which is summed, and that which is copied
    // Of the norms of the heads that are copied: queries, then K of the positions that are made.
    Array<float, kHeads> query_inverses;
    Array<float, kMostNewRows> key_inverses;
  };
  static constexpr size_t kSharedBytes = sizeof(Shared);
  static constexpr int kMostRegisters = 160;  // shared memory, not registers, bounds a multiprocessor's blocks
  // When a piece of work is entered, the block is at V of the one before, and reads neither q nor what it has made of K any more.
  static_assert(kTiles / kValueTiles >= kSlots - 1);

  // A lane's sums.
  struct Sums {
    Array<float[4], kHeads> scores;
    Array<float[2], kHeads> values;
  };

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
        if (next.part == 0) Enter(block, shared, next.work, shared.slots[next_slot]);
        block.ForEachWarp([&](const auto& warp) {
          warp.ForEachLane([&](int lane) {
            this->CopyPart(shared.works[next.work % 2], shared.tiles[next.work % 2], shared.query_inverses, next.part,
                           warp.index * kWarpLanes + lane, &copies, shared.slots[next_slot]);
          });
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
      const Work& work = shared.works[place.work % 2];
      if (this->MakesSome(work, place.part)) {
        block.ForEachThread([&](int thread) { this->MakeSome(work, shared.key_inverses, place.part, thread, shared.slots[slot]); });
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
  LLMI_HD Place After(Place place) const {
    return place.part + 1 < NumParts() ? Place{place.work, place.part + 1} : Place{place.work + 1, 0};
  }

  // Finds the tiles of the block's next piece of work, and the norms of its heads. room: a slot that is free.
  template <typename Block>
  LLMI_HD void Enter(const Block& block, Shared& shared, int number, uint8_t* room) const {
    block.ForEachThread([&](int tile) {
      if (tile >= kTiles) return;
      const Work work = this->WorkOf(block.x + number * num_blocks);
      if (tile == 0) shared.works[number % 2] = work;
      const bool is_whole = (tile + 1) * kTile > work.begin && tile * kTile < work.end && tile < work.gathered;
      shared.tiles[number % 2][tile] =
          is_whole ? KvTile(plan.args.kv, this->Segment(work).block_table, work.kv_head, work.span * kAttentionSpan + tile * kTile)
                   : nullptr;
    });
    if (!plan.makes_rows() || !plan.rows.is_normed()) return;
    const Work& work = shared.works[number % 2];
    const int first = this->FirstMade(work);
    const int num_keys = work.end > first ? work.end - first : 0;
    auto* lanes = reinterpret_cast<float*>(room);
    block.ForEachThread([&](int thread) {
      for (int i = thread; i < (work.num_heads + num_keys) * 16; i += kSpanThreads) {
        const int of = i / 16 - work.num_heads;
        lanes[i] = of < 0 ? plan.rows.Query(work.row, work.head_begin + i / 16, 0.0f).SquaresOf(i % 16)
                          : plan.rows.Key(this->MadeRow(work, first + of), work.kv_head, 0.0f).SquaresOf(i % 16);
      }
    });
    block.ForEachThread([&](int thread) {
      for (int i = thread; i < work.num_heads + num_keys; i += kSpanThreads) {
        const bool is_query = i < work.num_heads;
        const float inverse = ProjectedRows::Inverse(is_query ? plan.rows.query_norm : plan.rows.key_norm, lanes + i * 16);
        (is_query ? shared.query_inverses[i] : shared.key_inverses[i - work.num_heads]) = inverse;
      }
    });
  }

  LLMI_HD void AddPart(Shared& shared, Place place, int thread, const uint8_t* slot, Sums* sums) const {
    const Work& work = shared.works[place.work % 2];
    const Part part = PartOf(place.part);
    if (!part.is_key) return AddValues(shared, work, part, thread, slot, sums);
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
  LLMI_HD void AddValues(const Shared& shared, const Work& work, const Part& part, int thread, const uint8_t* slot, Sums* sums) const {
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

// top_candidates (kernels/ops/top_candidates.h) in two launches: a block for each chunk of ids, for the log-sum-exp in the CPU's order;
// then a block for each row, which selects and sorts.
#pragma once

#include <cstddef>

#include "core/ordered_bits.h"
#include "kernels/cpu/reference/lanes.h"
#include "kernels/cuda/block_ops.h"
#include "kernels/ops/top_candidates.h"
#include "kernels/ops/vocab.h"

namespace llmi::cuda {

// What the first launch leaves of a chunk.
struct CandidateChunk {
  float maximum;
  float sum;  // of exp(value - maximum), as softmax_chunk's; NaN if a value is NaN or +inf
};

struct CandidatePlan {
  TopCandidatesArgs args;
  int64_t num_chunks;
  CandidateChunk* chunks;  // [num_rows, num_chunks]

  LLMI_HD const float* Ranked() const { return args.values == nullptr ? args.logits : args.values; }
  template <typename Visit>
  void ForEachPointer(const Visit& visit) const {
    visit(args.logits);
    visit(args.values);
    visit(args.out);
    visit(chunks);
  }
};

// Block x: a chunk; y: a row.
struct CandidateChunkKernel {
  struct Shared {
    float terms[kVocabChunk];
    float lanes[16];
    ReductionRoom room;
    uint32_t maximum;
  };
  static constexpr size_t kSharedBytes = sizeof(Shared);
  CandidatePlan plan;

  template <typename Visit>
  void ForEachPointer(const Visit& visit) const {
    plan.ForEachPointer(visit);
  }

  template <typename Block>
  LLMI_HD void operator()(const Block& block) const {
    const int64_t first = block.x * kVocabChunk;
    const int64_t left = plan.args.vocab_size - first;
    const int64_t size = left < kVocabChunk ? left : kVocabChunk;
    const float* values = plan.Ranked() + block.y * plan.args.vocab_size + first;
    Shared& shared = *reinterpret_cast<Shared*>(block.shared);
    // NaN is no maximum; it makes the sum NaN, as +inf does.
    BlockMax(block, shared.room, &shared.maximum, [&](int thread) {
      uint32_t most = OrderedBits(-__builtin_inff());
      for (int64_t i = thread; i < size; i += block.num_threads) {
        const uint32_t own = values[i] == values[i] ? OrderedBits(values[i]) : most;
        most = own > most ? own : most;
      }
      return most;
    });
    const float peak = FromOrderedBits(shared.maximum);
    block.ForEachThread([&](int thread) {
      for (int64_t i = thread; i < size; i += block.num_threads) {
        shared.terms[i] = peak > -__builtin_inff() ? ExpF32(values[i] - peak) : values[i] == peak ? 0.0f : values[i];
      }
    });
    block.ForEachThread([&](int thread) {
      if (thread >= 16) return;
      float sum = 0.0f;
      for (int64_t i = thread; i < size; i += 16) sum = sum + shared.terms[i];
      shared.lanes[thread] = sum;
    });
    block.ForEachThread([&](int thread) {
      if (thread == 0) plan.chunks[block.y * plan.num_chunks + block.x] = {peak, reference::FoldSum(shared.lanes)};
    });
  }
};

// Block x: a row.
struct CandidateKernel {
  struct Shared {
    union {
      Selection selection;
      SortRoom sort;
    };
    uint64_t keys[kMostSorted];  // value, logit
    uint32_t ids[kMostSorted];
    float total;
    int32_t is_sound;
    RankedSelection ranked;
    uint32_t count;
  };
  static_assert(kMostTopCandidates == kMostSorted);
  static constexpr size_t kSharedBytes = sizeof(Shared);
  CandidatePlan plan;

  template <typename Visit>
  void ForEachPointer(const Visit& visit) const {
    plan.ForEachPointer(visit);
  }

  template <typename Block>
  LLMI_HD void operator()(const Block& block) const {
    const TopCandidatesArgs& args = plan.args;
    const RowView row = {args.logits + block.x * args.vocab_size, plan.Ranked() + block.x * args.vocab_size};
    Shared& shared = *reinterpret_cast<Shared*>(block.shared);
    block.ForEachThread([&](int thread) {
      if (thread > 0) return;
      LogSum all;
      for (int64_t i = 0; i < plan.num_chunks; ++i) {
        const CandidateChunk& chunk = plan.chunks[block.x * plan.num_chunks + i];
        all.Merge(chunk.maximum, chunk.sum);
      }
      const float total = all.Log();
      shared.is_sound = total == total ? 1 : 0;
      shared.total = args.values == nullptr ? total : 0.0f;
      shared.count = 0;
    });
    if (shared.is_sound != 0) {
      Choose(block, row, shared);
      Sort(block, row, shared);
    }
    block.ForEachThread([&](int thread) {
      for (int64_t i = thread; i < args.count; i += block.num_threads) {
        TopCandidate& out = args.out[block.x * args.count + i];
        const int64_t id = i < shared.count ? shared.ids[i] : 0;
        out = i < shared.count ? TopCandidate{row.values[id] - shared.total, row.logits[id], static_cast<int32_t>(id)} : kNoCandidate;
      }
    });
  }

 private:
  struct RowView {
    const float* logits;
    const float* values;

    // 0: no candidate.
    LLMI_HD uint64_t Key(int64_t id) const {
      return values[id] > -__builtin_inff() ? uint64_t{OrderedBits(values[id])} << 32 | OrderedBits(logits[id]) : 0;
    }
  };
  // Fills ids with the candidates, in any order.
  template <typename Block>
  LLMI_HD void Choose(const Block& block, const RowView& row, Shared& shared) const {
    const int64_t size = plan.args.vocab_size;
    BlockSelectRanked(
        block, shared.selection, &shared.ranked, size, static_cast<uint64_t>(plan.args.count), [&](int64_t id) { return row.Key(id); },
        [](int64_t) { return uint64_t{1}; });
    block.ForEachThread([&](int thread) {
      for (int64_t id = thread; id < size; id += block.num_threads) {
        if (!shared.ranked.Has(row.Key(id), id)) continue;
        shared.ids[AtomicAdd(&shared.count, 1u)] = static_cast<uint32_t>(id);
      }
    });
  }

  // By ids first: the second sort leaves them in this order where keys are equal.
  template <typename Block>
  LLMI_HD void Sort(const Block& block, const RowView& row, Shared& shared) const {
    const auto sort_by = [&](const auto& key) {
      block.ForEachThread([&](int thread) {
        for (uint32_t i = static_cast<uint32_t>(thread); i < shared.count; i += static_cast<uint32_t>(block.num_threads)) {
          shared.keys[i] = key(shared.ids[i]);
        }
      });
      BlockSort(block, shared.sort, shared.keys, shared.ids, static_cast<int>(shared.count));
    };
    sort_by([](uint32_t id) { return RankedSelection::IdKey(id); });
    sort_by([&](uint32_t id) { return row.Key(id); });
  }
};

}  // namespace llmi::cuda

// The first launch of a draw: summarises each chunk of 4,096 ids of a row (kernels/cuda/draw_kernels.h).
#pragma once

#include <cstddef>

#include "kernels/cuda/block.h"
#include "kernels/draws/draw.h"
#include "kernels/ops/vocab.h"

namespace llmi::cuda {

constexpr int kDrawScanThreads = 256;
constexpr int kDrawGroups = 16;  // of a chunk

constexpr int32_t kIsBad = 1;      // NaN or +inf, before or after the changes
constexpr int32_t kHasLogits = 2;  // above -inf, before them

// The first kernel's summary of a chunk.
struct DrawChunk {
  int32_t flags;  // of kIsBad and kHasLogits
  float peak;
  int32_t id;  // of the peak, the lowest; only where peak > -inf
};

// A DrawBatch on the device, and the places of its intermediate and final results.
struct DrawPlan {
  const DrawRow* rows;
  const MaskEdit* masks;
  const PenaltyEdit* penalties;
  const uint32_t* allowed;
  float* logits;  // [rows of the step, vocab_size], changed in place
  int64_t vocab_size;
  int64_t num_chunks;
  DrawChunk* chunks;   // [num_rows, num_chunks]
  float* group_peaks;  // [num_rows, num_chunks, kDrawGroups]
  uint64_t* lists;     // [num_rows, vocab_size] rank keys, or the bits of float64 weights
  const FilterStep* filters;
  const DraftedToken* drafted;
  const float* laws;             // [batch.num_laws, vocab_size]
  int32_t* tokens;               // [num_rows]
  int32_t* accepted;             // [num_rows]
  const int32_t* tokens_before;  // of the draw before

  template <typename Visit>
  void ForEachPointer(const Visit& visit) const {
    visit(rows);
    visit(masks);
    visit(penalties);
    visit(allowed);
    visit(logits);
    visit(chunks);
    visit(group_peaks);
    visit(lists);
    visit(filters);
    visit(drafted);
    visit(laws);
    visit(tokens);
    visit(accepted);
    visit(tokens_before);
  }
};

// Block x: a chunk of ids; y: a row.
struct DrawScanKernel {
  struct Shared {
    float peaks[kDrawScanThreads];
    int32_t ids[kDrawScanThreads];
    int32_t flags[kDrawScanThreads];
    bool knows_last;  // the penalties have the token of the draw before
  };
  static constexpr size_t kSharedBytes = sizeof(Shared);
  DrawPlan plan;

  template <typename Visit>
  void ForEachPointer(const Visit& visit) const {
    plan.ForEachPointer(visit);
  }

  template <typename Block>
  LLMI_HD void operator()(const Block& block) const {
    const DrawRow& row = plan.rows[block.y];
    float* logits = plan.logits + row.logits_row * plan.vocab_size;
    const int64_t first = block.x * kVocabChunk;
    const int64_t end = first + kVocabChunk < plan.vocab_size ? first + kVocabChunk : plan.vocab_size;
    Shared& shared = *reinterpret_cast<Shared*>(block.shared);

    block.ForEachThread([&](int thread) {
      int32_t flags = 0;
      for (int64_t id = first + thread; id < end; id += block.num_threads) {
        const float logit = logits[id];
        flags |= (logit < __builtin_inff() ? 0 : kIsBad) | (logit > -__builtin_inff() ? kHasLogits : 0);
        const bool is_left = row.allowed < 0 || (plan.allowed[row.allowed + id / 32] >> (id % 32) & 1) != 0;
        if (!is_left) logits[id] = -__builtin_inff();
      }
      shared.flags[thread] = flags;
      if (thread == 0) shared.knows_last = false;
    });
    block.ForEachThread([&](int thread) {
      for (int64_t i = row.mask_begin + thread; i < row.mask_end; i += block.num_threads) {
        const int32_t id = plan.masks[i].id;
        if (id < first || id >= end || (i > row.mask_begin && plan.masks[i - 1].id == id)) continue;
        for (int64_t same = i; same < row.mask_end && plan.masks[same].id == id; ++same) {
          logits[id] = MaskedLogit(plan.masks[same], logits[id]);
        }
      }
    });
    const int32_t last = row.after < 0 ? kNoToken : plan.tokens_before[row.after];
    block.ForEachThread([&](int thread) {
      for (int64_t i = row.penalty_begin + thread; i < row.penalty_end; i += block.num_threads) {
        PenaltyEdit edit = plan.penalties[i];
        if (edit.id < first || edit.id >= end) continue;
        if (edit.id == last) {
          ++edit.count;
          shared.knows_last = true;
        }
        logits[edit.id] = PenalisedLogit(edit, row.penalties, logits[edit.id]);
      }
    });
    block.ForEachThread([&](int thread) {
      if (thread != 0 || last < first || last >= end || shared.knows_last) return;
      logits[last] = PenalisedLogit({last, 1}, row.penalties, logits[last]);
    });
    block.ForEachThread([&](int thread) {
      float peak = -__builtin_inff();
      int32_t best = INT32_MAX;
      bool bad = false;
      for (int64_t id = first + thread; id < end; id += block.num_threads) {
        const float logit = logits[id];
        bad = bad || !(logit < __builtin_inff());
        if (!(logit > peak)) continue;
        peak = logit;
        best = static_cast<int32_t>(id);
      }
      shared.peaks[thread] = peak;
      shared.ids[thread] = best;
      if (bad) shared.flags[thread] |= kIsBad;
    });
    const int64_t index = block.y * plan.num_chunks + block.x;
    for (int half = kDrawScanThreads / 2; half > 0; half /= 2) {
      if (half * 2 == kDrawGroups) {
        block.ForEachThread([&](int thread) {
          if (thread < kDrawGroups) plan.group_peaks[index * kDrawGroups + thread] = shared.peaks[thread];
        });
      }
      block.ForEachThread([&](int thread) {
        if (thread >= half) return;
        const int other = thread + half;
        const bool wins = shared.peaks[other] > shared.peaks[thread] ||
                          (shared.peaks[other] == shared.peaks[thread] && shared.ids[other] < shared.ids[thread]);
        if (wins) {
          shared.peaks[thread] = shared.peaks[other];
          shared.ids[thread] = shared.ids[other];
        }
        shared.flags[thread] |= shared.flags[other];
      });
    }
    block.ForEachThread([&](int thread) {
      if (thread == 0) plan.chunks[index] = {shared.flags[0], shared.peaks[0], shared.ids[0]};
    });
  }
};

}  // namespace llmi::cuda

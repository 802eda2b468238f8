// The first launch of a draw (kernels/cuda/draw_kernels.h): reads each chunk of 4,096 ids of a row once.
#pragma once

#include <cstddef>

#include "kernels/cuda/draw_settle.h"

namespace llmi::cuda {

// Block x: a chunk of ids; y: a row. The block changes the chunk by masks, bias and penalties, finds its best token, the maxima of 16
// groups of its ids, which bound the k-th largest logit from below, and the winner of its race. The row's last block settles it.
struct DrawScanKernel {
  struct Shared {
    union {
      float logits[kVocabChunk];
      Selection selection;
    };
    ReductionRoom room;
    float peaks[kDrawThreads];
    LogitSummary summary;
    Runner winner;
    DrawState state;
    bool knows_last;  // the penalties have the token of the draw before
    int32_t is_last;
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
    Shared& shared = *reinterpret_cast<Shared*>(block.shared);
    const int64_t index = block.y * plan.num_chunks + block.x;
    Load(block, row, shared);
    Change(block, row, shared);
    Summarise(block, shared);
    const float peak = RankLogit(shared.summary.best_key);
    block.ForEachThread([&](int thread) {
      if (thread == 0) plan.chunks[index] = shared.summary;
      if (thread >= kDrawGroups) return;
      float most = -__builtin_inff();
      for (int i = thread; i < kDrawThreads; i += kDrawGroups) most = shared.peaks[i] > most ? shared.peaks[i] : most;
      plan.group_peaks[index * kDrawGroups + thread] = most;
    });
    if (IsPlain(row)) {
      if (shared.summary.best_key > 0 && LawOf(row, peak) > -__builtin_inff()) {
        RaceChunk(block, shared.room, row, shared.logits, block.x * kVocabChunk, plan.ChunkSize(block.x), LeastKey(),
                  RankId(shared.summary.best_key), LawOf(row, peak), &shared.winner);
      } else {
        block.ForEachThread([&](int thread) {
          if (thread == 0) shared.winner = kNoRunner;
        });
      }
      block.ForEachThread([&](int thread) {
        if (thread == 0) plan.winners[index] = shared.winner;
      });
    }
    CountBlock(block, plan.counts + block.y, static_cast<uint32_t>(plan.num_chunks), &shared.is_last);
    if (shared.is_last == 0 || IsFiltered(row)) return;  // the filters settle it
    SummariseRow(block, plan, block.y, shared.room, &shared.summary);
    SettleRow(block, plan, block.y, shared.summary, shared.selection, &shared.state);
    if (shared.state.cannot_draw == 0 && IsPlain(row)) GiveBestWinner(block, shared.room, plan, block.y, &shared.winner);
  }

 private:
  template <typename Block>
  LLMI_HD void Load(const Block& block, const DrawRow& row, Shared& shared) const {
    const int64_t first = block.x * kVocabChunk;
    const float* logits = plan.Logits(row) + first;
    const auto load = [&](int thread) {
      LogitSummary own = {0, 0};
      for (int64_t i = thread; i < plan.ChunkSize(block.x); i += block.num_threads) {
        const int64_t id = first + i;
        const float logit = logits[i];
        own.flags |= (logit < __builtin_inff() ? 0 : kIsBad) | (logit > -__builtin_inff() ? kHasLogits : 0);
        const bool is_left = row.allowed < 0 || (plan.allowed[row.allowed + id / 32] >> (id % 32) & 1) != 0;
        shared.logits[i] = is_left ? logit : -__builtin_inff();
      }
      if (thread == 0) shared.knows_last = false;
      return own;
    };
    BlockReduce(block, shared.room, &shared.summary, load, LogitSummary::Join);
  }

  // Masks, bias and penalties; the row is written where there are any.
  template <typename Block>
  LLMI_HD void Change(const Block& block, const DrawRow& row, Shared& shared) const {
    const int32_t last = row.after < 0 ? kNoToken : plan.tokens_before[row.after];
    if (row.allowed < 0 && row.mask_begin == row.mask_end && row.penalty_begin == row.penalty_end && last == kNoToken) return;
    const int64_t first = block.x * kVocabChunk;
    const int64_t size = plan.ChunkSize(block.x);
    // The place of an id in the chunk; -1: it is in another one.
    const auto place = [&](int32_t id) { return id >= first && id < first + size ? id - first : -1; };
    block.ForEachThread([&](int thread) {
      for (int64_t i = row.mask_begin + thread; i < row.mask_end; i += block.num_threads) {
        const int32_t id = plan.masks[i].id;
        if (place(id) < 0 || (i > row.mask_begin && plan.masks[i - 1].id == id)) continue;
        float& logit = shared.logits[place(id)];
        for (int64_t same = i; same < row.mask_end && plan.masks[same].id == id; ++same) logit = MaskedLogit(plan.masks[same], logit);
      }
    });
    block.ForEachThread([&](int thread) {
      for (int64_t i = row.penalty_begin + thread; i < row.penalty_end; i += block.num_threads) {
        PenaltyEdit edit = plan.penalties[i];
        if (place(edit.id) < 0) continue;
        if (edit.id == last) {
          ++edit.count;
          shared.knows_last = true;
        }
        float& logit = shared.logits[place(edit.id)];
        logit = PenalisedLogit(edit, row.penalties, logit);
      }
    });
    block.ForEachThread([&](int thread) {
      if (thread != 0 || place(last) < 0 || shared.knows_last) return;
      float& logit = shared.logits[place(last)];
      logit = PenalisedLogit({last, 1}, row.penalties, logit);
    });
    block.ForEachThread([&](int thread) {
      float* logits = plan.Logits(row) + first;
      for (int64_t i = thread; i < size; i += block.num_threads) logits[i] = shared.logits[i];
    });
  }

  // Adds the chunk as it is now to the summary, and finds the threads' maxima.
  template <typename Block>
  LLMI_HD void Summarise(const Block& block, Shared& shared) const {
    const int64_t first = block.x * kVocabChunk;
    const auto summarise = [&](int thread) {
      LogitSummary own = {0, thread == 0 ? shared.summary.flags : 0};
      float peak = -__builtin_inff();
      for (int64_t i = thread; i < plan.ChunkSize(block.x); i += block.num_threads) {
        const float logit = shared.logits[i];
        if (!(logit < __builtin_inff())) own.flags |= kIsBad;
        if (!(logit > -__builtin_inff())) continue;
        own = LogitSummary::Join(own, {RankKey(logit, first + i), 0});
        peak = logit > peak ? logit : peak;
      }
      shared.peaks[thread] = peak;
      return own;
    };
    BlockReduce(block, shared.room, &shared.summary, summarise, LogitSummary::Join);
  }
};

}  // namespace llmi::cuda

// draw: rows of logits to tokens (kernels/draws/draw.h), in two launches; a third for rows whose drafted tokens are judged
// (verify_kernel.h).
//
// DrawScanKernel, a block a chunk of 4,096 ids: is the row finite; then masks, bias and penalties, written in place; then the
// chunk's best token, and the maxima of 16 groups of its ids, which bound the k-th largest logit from below.
// DrawKernel, a block a row: the race, over the vocabulary or, where top-k or top-p cut it, over the list of what is kept
// (law_selection.h). So the logits are read once by the first kernel (its second look finds them in the caches) and once or, for top-p
// alone, twice by the second.
#pragma once

#include <cstddef>

#include "kernels/cuda/law_selection.h"

namespace llmi::cuda {

// Block x: a row.
struct DrawKernel : LawSelection {
  static constexpr size_t kSharedBytes = sizeof(Shared);

  template <typename Block>
  LLMI_HD void operator()(const Block& block) const {
    const DrawRow& row = plan.rows[block.x];
    if (row.IsJudged()) return;
    const RowView view = ViewOf(row, block.x);
    Shared& shared = *reinterpret_cast<Shared*>(block.shared);
    FindBest(block, row, shared);
    if (shared.cannot_draw != 0 || row.temperature == 0.0f) {
      block.ForEachThread([&](int thread) {
        if (thread == 0) Give(block.x, shared.cannot_draw != 0 ? kNoToken : shared.best, -1);
      });
      return;
    }
    Cut(block, row, view, shared);
    Race(block, row, view, shared);
  }

 private:
  template <typename Block>
  LLMI_HD void Race(const Block& block, const DrawRow& row, const RowView& view, Shared& shared) const {
    const bool listed = row.top_k > 0 || row.top_p < 1.0;
    FindWinner(block, shared, [&](int thread) {
      // The likeliest token first: its score lets the loop skip nearly all others.
      const int64_t favourite = shared.best;
      Runner best = {RaceScore(RaceWords(row.noise, favourite / 4)[favourite % 4], shared.peak), shared.best};
      const auto limit = static_cast<float>(best.score);
      const auto run = [&](uint32_t word, float law, int32_t id) {
        if (!MayWinRace(word, limit, law)) return;
        const Runner runner = {RaceScore(word, law), id};
        if (runner.Beats(best)) best = runner;
      };
      if (listed) {
        for (int64_t i = thread; i < shared.list_size; i += block.num_threads) {
          const uint64_t key = view.list[i];
          const int32_t id = RankId(key);
          if (IsKept(row, key, shared)) run(RaceWords(row.noise, id / 4)[id % 4], RankLogit(key), id);
        }
      } else {
        for (int64_t quad = thread; quad * 4 < view.vocab_size; quad += block.num_threads) {
          const PhiloxWords words = RaceWords(row.noise, quad);
          for (int i = 0; i < 4 && quad * 4 + i < view.vocab_size; ++i) {
            const float law = view.Law(quad * 4 + i);
            if (RankKey(law, quad * 4 + i) >= shared.floor) run(words[i], law, static_cast<int32_t>(quad * 4 + i));
          }
        }
      }
      return best;
    });
    block.ForEachThread([&](int thread) {
      if (thread == 0) Give(block.x, shared.winner.id, -1);
    });
  }
};

}  // namespace llmi::cuda

// What one block does for a row when its logits are final: the best token of all, whether there is one, and where the kept keys begin.
#pragma once

#include "kernels/cuda/draw_race.h"

namespace llmi::cuda {

// The k-th largest of the groups' maxima has k logits from it on.
template <typename Block>
LLMI_HD void RaiseFloorForTopK(const Block& block, const DrawPlan& plan, int64_t index, Selection& selection, DrawState* state) {
  const DrawRow& row = plan.rows[index];
  const int64_t count = plan.num_chunks * kDrawGroups;
  if (row.top_k > count) return;
  const float* peaks = plan.group_peaks + index * count;
  BlockSelect(
      block, selection, count, static_cast<uint64_t>(row.top_k), SelectionEnd::kLastDigit,
      [&](int64_t i) { return RankKey(LoadFresh(peaks + i), i); }, [](int64_t) { return uint64_t{1}; });
  block.ForEachThread([&](int thread) {
    if (thread > 0) return;
    const uint64_t key = LeastRankKey(LawOf(row, RankLogit(selection.floor)));
    if (key > state->floor) state->floor = key;
  });
}

// *all, shared: the summary of the row's chunks.
template <typename Block, typename Room>
LLMI_HD void SummariseRow(const Block& block, const DrawPlan& plan, int64_t index, Room& room, LogitSummary* all) {
  const auto join = [&](int thread) {
    LogitSummary own = {0, 0};
    for (int64_t c = thread; c < plan.num_chunks; c += block.num_threads) {
      own = LogitSummary::Join(own, LoadFresh(plan.chunks + index * plan.num_chunks + c));
    }
    return own;
  };
  BlockReduce(block, room, all, join, LogitSummary::Join);
}

// all: the row's summary. *state: shared; it goes to plan.states, too. A row that is greedy or cannot be drawn gets its token.
template <typename Block>
LLMI_HD void SettleRow(const Block& block, const DrawPlan& plan, int64_t index, const LogitSummary& all, Selection& selection,
                       DrawState* state) {
  const DrawRow& row = plan.rows[index];
  block.ForEachThread([&](int thread) {
    if (thread > 0) return;
    const float peak = RankLogit(all.best_key);
    const float law = IsGreedy(row) ? peak : peak / row.temperature;
    const bool is_finite = all.best_key > 0 && law > -__builtin_inff() && law < __builtin_inff();
    const uint64_t limit = row.min_p > 0.0 ? LeastRankKey(MinPLimit(law, row.min_p)) : 0;
    *state = {limit > LeastKey() ? limit : LeastKey(), 0, law, RankId(all.best_key), all.flags == kHasLogits && is_finite ? 0 : 1, 0};
  });
  if (state->cannot_draw == 0 && !IsGreedy(row) && row.top_k > 0) RaiseFloorForTopK(block, plan, index, selection, state);
  block.ForEachThread([&](int thread) {
    if (thread > 0) return;
    plan.states[index] = *state;
    if (state->cannot_draw != 0 || IsGreedy(row)) plan.Give(index, state->cannot_draw != 0 ? kNoToken : state->best);
  });
}

}  // namespace llmi::cuda

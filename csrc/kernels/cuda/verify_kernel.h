// The drafted tokens of a row, judged on the device that holds its law (kernels/draws/verify.h): the third launch of a draw whose rows have
// any.
#pragma once

#include <cstddef>

#include "kernels/cuda/law_selection.h"

namespace llmi::cuda {

// Block x: a row. Once the cuts are known, the law's weights overwrite the list of keys.
struct VerifyKernel : LawSelection {
  static_assert(kDrawThreads == kLawLanes, "a thread sums a lane");
  struct Shared : LawSelection::Shared {
    double sums[kLawLanes];
    double sum;  // of the weights
    int32_t accepts;
  };
  static constexpr size_t kSharedBytes = sizeof(Shared);

  template <typename Block>
  LLMI_HD void operator()(const Block& block) const {
    const DrawRow& row = plan.rows[block.x];
    if (!row.IsJudged()) return;
    const RowView view = ViewOf(row, block.x);
    Shared& shared = *reinterpret_cast<Shared*>(block.shared);
    const auto give = [&](int32_t token, int64_t accepted) {
      block.ForEachThread([&](int thread) {
        if (thread == 0) Give(block.x, token, static_cast<int32_t>(accepted));
      });
    };
    FindBest(block, row, shared);
    if (shared.cannot_draw != 0) return give(kNoToken, -1);
    const bool greedy = row.temperature == 0.0f;
    if (!greedy) Cut(block, row, view, shared);
    const auto target = [&](int64_t id) {
      if (greedy) return id == shared.best ? 1.0 : 0.0;
      const float law = view.Law(id);
      return IsKept(row, RankKey(law, id), shared) ? LawWeight(law, shared.peak) : 0.0;
    };
    SetWeights(block, view, shared, target);
    for (int64_t i = row.drafted_begin; i < row.drafted_end; ++i) {
      const DraftedToken drafted = plan.drafted[i];
      const float* law = drafted.law < 0 ? nullptr : plan.laws + drafted.law * plan.vocab_size;
      block.ForEachThread([&](int thread) {
        if (thread > 0) return;
        const double accepts = ExactAcceptance(Probability(view, shared, drafted.id), DraftProbability(drafted.id, drafted.id, law));
        shared.accepts = drafted.uniform < accepts ? 1 : 0;
      });
      if (shared.accepts != 0) return give(drafted.id, i - row.drafted_begin);
      SetWeights(block, view, shared,
                 [&](int64_t id) { return ResidualWeight(Probability(view, shared, id), DraftProbability(id, drafted.id, law)); });
    }
    if (greedy) return give(shared.best, -1);
    // No weight is left: the laws are equal up to rounding, so the target itself is drawn from.
    if (!(shared.sum > 0)) SetWeights(block, view, shared, target);
    Race(block, row, view, shared);
    give(shared.winner.id, -1);
  }

 private:
  LLMI_HD static double Probability(const RowView& view, const Shared& shared, int64_t id) {
    return __builtin_bit_cast(double, view.list[id]) / LawDivisor(shared.sum);
  }

  // weight(id) may look at the probability of its id so far.
  template <typename Block, typename Weight>
  LLMI_HD void SetWeights(const Block& block, const RowView& view, Shared& shared, const Weight& weight) const {
    block.ForEachThread([&](int thread) {
      double sum = 0;
      for (int64_t id = thread; id < view.vocab_size; id += kLawLanes) {
        const double value = weight(id);
        view.list[id] = __builtin_bit_cast(uint64_t, value);
        sum += value;
      }
      shared.sums[thread] = sum;
    });
    for (int half = kLawLanes / 2; half > 0; half /= 2) {
      block.ForEachThread([&](int thread) {
        if (thread < half) shared.sums[thread] += shared.sums[thread + half];
      });
    }
    block.ForEachThread([&](int thread) {
      if (thread == 0) shared.sum = shared.sums[0];
    });
  }

  template <typename Block>
  LLMI_HD void Race(const Block& block, const DrawRow& row, const RowView& view, Shared& shared) const {
    FindWinner(block, shared, [&](int thread) {
      Runner best = {__builtin_inf(), INT32_MAX};
      for (int64_t quad = thread; quad * 4 < view.vocab_size; quad += block.num_threads) {
        const PhiloxWords words = RaceWords(row.noise_after_rejection, quad);
        for (int i = 0; i < 4 && quad * 4 + i < view.vocab_size; ++i) {
          const float law = LogLaw(Probability(view, shared, quad * 4 + i));
          if (!(law > -__builtin_inff()) || !MayWinRace(words[i], static_cast<float>(best.score), law)) continue;
          const Runner runner = {RaceScore(words[i], law), static_cast<int32_t>(quad * 4 + i)};
          if (runner.Beats(best)) best = runner;
        }
      }
      return best;
    });
  }
};

}  // namespace llmi::cuda

// The drafted tokens of a row, judged on the device that holds its law (kernels/draws/verify.h): the last launch of a draw whose rows have
// any.
#pragma once

#include <cstddef>

#include "kernels/cuda/law_selection.h"
#include "kernels/draws/verify.h"

namespace llmi::cuda {

// Block x: a row. Once the cuts are known, the law's weights overwrite the list of keys.
struct VerifyKernel {
  static_assert(kDrawThreads == kLawLanes, "a thread sums a lane");
  struct Shared : LawSelection {
    double sums[kLawLanes];
    double sum;  // of the weights
    int32_t accepts;
  };
  static constexpr size_t kSharedBytes = sizeof(Shared);
  DrawPlan plan;

  template <typename Visit>
  void ForEachPointer(const Visit& visit) const {
    plan.ForEachPointer(visit);
  }

  template <typename Block>
  LLMI_HD void operator()(const Block& block) const {
    const DrawRow& row = plan.rows[block.x];
    if (!row.IsJudged() || plan.states[block.x].cannot_draw != 0) return;
    uint64_t* weights = plan.lists + block.x * plan.vocab_size;
    Shared& shared = *reinterpret_cast<Shared*>(block.shared);
    const auto give = [&](int32_t token, int64_t accepted) {
      block.ForEachThread([&](int thread) {
        if (thread == 0) plan.Give(block.x, token, static_cast<int32_t>(accepted));
      });
    };
    block.ForEachThread([&](int thread) {
      if (thread == 0) shared.state = plan.states[block.x];
    });
    if (IsListed(row)) shared.Select(block, row, weights);
    const float* logits = plan.Logits(row);
    const auto target = [&](int64_t id) {
      if (IsGreedy(row)) return id == shared.state.best ? 1.0 : 0.0;
      const float law = LawOf(row, logits[id]);
      return shared.IsKept(row, RankKey(law, id)) ? LawWeight(law, shared.state.peak) : 0.0;
    };
    SetWeights(block, weights, shared, target);
    for (int64_t i = row.drafted_begin; i < row.drafted_end; ++i) {
      const DraftedToken drafted = plan.drafted[i];
      const float* law = drafted.law < 0 ? nullptr : plan.laws + drafted.law * plan.vocab_size;
      block.ForEachThread([&](int thread) {
        if (thread > 0) return;
        const double accepts = ExactAcceptance(Probability(weights, shared, drafted.id), DraftProbability(drafted.id, drafted.id, law));
        shared.accepts = drafted.uniform < accepts ? 1 : 0;
      });
      if (shared.accepts != 0) return give(drafted.id, i - row.drafted_begin);
      SetWeights(block, weights, shared,
                 [&](int64_t id) { return ResidualWeight(Probability(weights, shared, id), DraftProbability(id, drafted.id, law)); });
    }
    if (IsGreedy(row)) return give(shared.state.best, -1);
    // No weight is left: the laws are equal up to rounding, so the target itself is drawn from.
    if (!(shared.sum > 0)) SetWeights(block, weights, shared, target);
    RaceWeights(block, row, weights, shared);
    give(shared.winner.id, -1);
  }

 private:
  LLMI_HD static double Probability(const uint64_t* weights, const Shared& shared, int64_t id) {
    return __builtin_bit_cast(double, weights[id]) / LawDivisor(shared.sum);
  }

  // weight(id) may look at the probability of its id so far.
  template <typename Block, typename Weight>
  LLMI_HD void SetWeights(const Block& block, uint64_t* weights, Shared& shared, const Weight& weight) const {
    block.ForEachThread([&](int thread) {
      double sum = 0;
      for (int64_t id = thread; id < plan.vocab_size; id += kLawLanes) {
        const double value = weight(id);
        weights[id] = __builtin_bit_cast(uint64_t, value);
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
  LLMI_HD void RaceWeights(const Block& block, const DrawRow& row, const uint64_t* weights, Shared& shared) const {
    FindWinner(block, shared.room, &shared.winner, [&](int thread) {
      Runner best = kNoRunner;
      for (int64_t quad = thread; quad * 4 < plan.vocab_size; quad += block.num_threads) {
        const PhiloxWords words = RaceWords(row.noise_after_rejection, quad);
        for (int i = 0; i < 4 && quad * 4 + i < plan.vocab_size; ++i) {
          const float law = LogLaw(Probability(weights, shared, quad * 4 + i));
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

// The race of a row (kernels/draws/exponential_race.h), chunk by chunk: each chunk has a winner, and the best of these is the row's.
#pragma once

#include "kernels/cuda/draw_plan.h"

namespace llmi::cuda {

// The keys of all tokens that a race may draw: above -inf.
LLMI_HD static inline uint64_t LeastKey() { return LeastRankKey(-__builtin_inff()) + (uint64_t{1} << 32); }

// The id's word; without an index that is known at run time only, which would put the words into memory.
LLMI_HD static inline uint32_t RaceWord(const RaceNoise& noise, int32_t id) {
  const PhiloxWords words = RaceWords(noise, id / 4);
  const uint32_t even = id % 4 < 2 ? words[0] : words[2];
  const uint32_t odd = id % 4 < 2 ? words[1] : words[3];
  return id % 2 == 0 ? even : odd;
}
LLMI_HD static inline Runner RunnerOf(const DrawRow& row, int32_t id, float law) { return {RaceScore(RaceWord(row.noise, id), law), id}; }

// Runs tokens against the best so far; `limit`, a score that is reached anyhow, lets it skip nearly all of them.
struct Race {
  Runner best;
  float limit;

  LLMI_HD explicit Race(const Runner& reached) : best(reached), limit(static_cast<float>(reached.score)) {}
  LLMI_HD void Run(uint32_t word, float law, int32_t id) {
    if (!MayWinRace(word, limit, law)) return;
    const Runner runner = {RaceScore(word, law), id};
    if (runner.Beats(best)) best = runner;
  }
};

// *winner: the best of runner(thread) of all threads.
template <typename Block, typename Room, typename Best>
LLMI_HD void FindWinner(const Block& block, Room& room, Runner* winner, const Best& runner) {
  BlockReduce(block, room, winner, runner, [](const Runner& a, const Runner& b) { return a.Beats(b) ? a : b; });
}

// The winner among ids first + i, i < size, whose keys are `floor` or more. favourite: a likely token with its law, which takes part.
template <typename Block, typename Room>
LLMI_HD void RaceChunk(const Block& block, Room& room, const DrawRow& row, const float* logits, int64_t first, int64_t size, uint64_t floor,
                       int32_t favourite, float favourite_law, Runner* winner) {
  FindWinner(block, room, winner, [&](int thread) {
    Race race(RunnerOf(row, favourite, favourite_law));
    for (int64_t i = thread * 4; i < size; i += block.num_threads * 4) {
      const PhiloxWords words = RaceWords(row.noise, (first + i) / 4);
      LLMI_UNROLL
      for (int k = 0; k < 4; ++k) {
        if (i + k >= size) break;
        const float law = LawOf(row, logits[i + k]);
        const auto id = static_cast<int32_t>(first + i + k);
        if (RankKey(law, id) >= floor) race.Run(words[k], law, id);
      }
    }
    return race.best;
  });
}

// Gives the best of the chunks' winners: the last block's, of the row that these blocks have drawn.
template <typename Block, typename Room>
LLMI_HD void GiveBestWinner(const Block& block, Room& room, const DrawPlan& plan, int64_t row, Runner* winner) {
  FindWinner(block, room, winner, [&](int thread) {
    Runner best = kNoRunner;
    for (int64_t c = thread; c < plan.num_chunks; c += block.num_threads) {
      const Runner own = LoadFresh(plan.winners + row * plan.num_chunks + c);
      if (own.Beats(best)) best = own;
    }
    return best;
  });
  block.ForEachThread([&](int thread) {
    if (thread == 0) plan.Give(row, winner->id);
  });
}

}  // namespace llmi::cuda

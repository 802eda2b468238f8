// The launches of a draw for rows of which the best token must be known before anything is cut: min-p, top-k, top-p, and filtered rows.
#pragma once

#include <cstddef>

#include "kernels/cuda/law_selection.h"

namespace llmi::cuda {

// The mass of rows whose top-p is of all tokens. Block x: a chunk of ids; y: a row.
struct DrawMassKernel {
  struct Shared {
    ReductionRoom room;
    uint64_t sum;
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
    if (!MassDecides(row) || plan.states[block.y].cannot_draw != 0) return;
    const uint64_t floor = plan.states[block.y].floor;
    const float peak = plan.states[block.y].peak;
    const int64_t first = block.x * kVocabChunk;
    const float* logits = plan.Logits(row) + first;
    Shared& shared = *reinterpret_cast<Shared*>(block.shared);
    BlockSum(block, shared.room, &shared.sum, [&](int thread) {
      uint64_t own = 0;
      for (int64_t i = thread; i < plan.ChunkSize(block.x); i += block.num_threads) {
        const float law = LawOf(row, logits[i]);
        own += RankKey(law, first + i) >= floor ? TokenMass(law, peak) : 0;
      }
      return own;
    });
    block.ForEachThread([&](int thread) {
      if (thread == 0) AtomicAdd(&plan.states[block.y].total, shared.sum);
    });
  }
};

// Block x: a chunk of ids; y: a row. Lists the chunk's tokens that may be kept, or finds the winner of its race; the row's last block
// draws.
struct DrawGatherKernel {
  struct Shared : LawSelection {
    float logits[kVocabChunk];
    uint64_t count;
    uint32_t place;
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
    if (!IsGathered(row) || plan.states[block.y].cannot_draw != 0) return;
    Shared& shared = *reinterpret_cast<Shared*>(block.shared);
    const int64_t first = block.x * kVocabChunk;
    block.ForEachThread([&](int thread) {
      if (thread == 0) shared.state = plan.states[block.y];
      const float* logits = plan.Logits(row) + first;
      for (int64_t i = thread; i < plan.ChunkSize(block.x); i += block.num_threads) shared.logits[i] = logits[i];
    });
    if (IsListed(row)) {
      Gather(block, row, shared);
    } else {
      RaceChunk(block, shared.room, row, shared.logits, first, plan.ChunkSize(block.x), shared.state.floor, shared.state.best,
                shared.state.peak, &shared.winner);
      block.ForEachThread([&](int thread) {
        if (thread == 0) plan.winners[block.y * plan.num_chunks + block.x] = shared.winner;
      });
    }
    CountBlock(block, plan.counts + block.y, static_cast<uint32_t>(plan.num_chunks), &shared.is_last);
    if (shared.is_last == 0 || row.IsJudged()) return;
    if (!IsListed(row)) return GiveBestWinner(block, shared.room, plan, block.y, &shared.winner);
    block.ForEachThread([&](int thread) {
      if (thread == 0) shared.state = LoadFresh(plan.states + block.y);
    });
    const uint64_t* list = plan.lists + block.y * plan.vocab_size;
    shared.Select(block, row, list);
    RaceList(block, row, list, shared);
  }

 private:
  // Lists the tokens from the floor on. Where top-p is of all tokens, those of total - wanted or less together are not needed: what is
  // above them suffices.
  template <typename Block>
  LLMI_HD void Gather(const Block& block, const DrawRow& row, Shared& shared) const {
    const uint64_t total = shared.state.total;
    const uint64_t least_mass = MassDecides(row) ? (total - WantedMass(row.top_p, total)) / static_cast<uint64_t>(plan.vocab_size) : 0;
    const int64_t first = block.x * kVocabChunk;
    const auto for_each_kept = [&](int thread, const auto& f) {
      for (int64_t i = thread; i < plan.ChunkSize(block.x); i += block.num_threads) {
        const float law = LawOf(row, shared.logits[i]);
        const uint64_t key = RankKey(law, first + i);
        if (key >= shared.state.floor && (least_mass == 0 || TokenMass(law, shared.state.peak) > least_mass)) f(key);
      }
    };
    BlockSum(block, shared.room, &shared.count, [&](int thread) {
      uint64_t own = 0;
      for_each_kept(thread, [&](uint64_t) { ++own; });
      return own;
    });
    block.ForEachThread([&](int thread) {
      if (thread == 0) shared.place = AtomicAdd(&plan.states[block.y].list_size, static_cast<uint32_t>(shared.count));
    });
    uint64_t* list = plan.lists + block.y * plan.vocab_size;
    block.ForEachThread([&](int thread) { for_each_kept(thread, [&](uint64_t key) { list[AtomicAdd(&shared.place, 1u)] = key; }); });
  }

  template <typename Block>
  LLMI_HD void RaceList(const Block& block, const DrawRow& row, const uint64_t* list, Shared& shared) const {
    FindWinner(block, shared.room, &shared.winner, [&](int thread) {
      Race race(RunnerOf(row, shared.state.best, shared.state.peak));
      for (int64_t i = thread; i < shared.state.list_size; i += block.num_threads) {
        const uint64_t key = LoadFresh(list + i);
        const int32_t id = RankId(key);
        if (shared.IsKept(row, key)) race.Run(RaceWord(row.noise, id), RankLogit(key), id);
      }
      return race.best;
    });
    block.ForEachThread([&](int thread) {
      if (thread == 0) plan.Give(block.y, shared.winner.id);
    });
  }
};

}  // namespace llmi::cuda

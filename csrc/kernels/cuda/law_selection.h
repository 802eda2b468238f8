// Selects the tokens that a row's law keeps: by temperature, min-p, top-k and top-p, after masks and penalties
// (kernels/cuda/draw_scan_kernel.h). Base of the kernels that draw, one block per row.
//
// If top-k or top-p cut, a list of rank keys of the tokens that may be kept is gathered in one pass over the logits, then selected from
// digit by digit. Nothing depends on the order of the list or of any sum: keys are compared, counts and masses are integers.
#pragma once

#include <cstddef>

#include "kernels/cuda/block_ops.h"
#include "kernels/cuda/draw_scan_kernel.h"

namespace llmi::cuda {

constexpr int kDrawThreads = kOpThreads;

// A token in the race: the least score wins, the lowest id among equals.
struct Runner {
  double score;
  int32_t id;

  LLMI_HD bool Beats(const Runner& other) const { return score < other.score || (score == other.score && id < other.id); }
};

struct LawSelection {
  struct Shared {
    Selection selection;
    ReductionRoom room;
    Runner winner;
    // The row's state.
    uint64_t best_key;
    int32_t flags;
    float peak;
    int32_t best;
    int32_t cannot_draw;
    uint64_t floor;  // keys below it are cut
    uint64_t total;  // mass of those that are not
    uint32_t list_size;
  };
  DrawPlan plan;

  template <typename Visit>
  void ForEachPointer(const Visit& visit) const {
    plan.ForEachPointer(visit);
  }

  struct RowView {
    const float* logits;
    int64_t vocab_size;
    float temperature;
    uint64_t* list;

    LLMI_HD float Law(int64_t id) const { return temperature == 1.0f ? logits[id] : logits[id] / temperature; }
  };
  LLMI_HD RowView ViewOf(const DrawRow& row, int64_t index) const {
    return {plan.logits + row.logits_row * plan.vocab_size, plan.vocab_size, row.temperature, plan.lists + index * plan.vocab_size};
  }
  // One thread's.
  LLMI_HD void Give(int64_t index, int32_t token, int32_t accepted) const {
    plan.tokens[index] = token;
    plan.accepted[index] = accepted;
  }

  // Raises the floor to the least key that is kept; where something is cut, all that is kept is on the list.
  template <typename Block>
  LLMI_HD void Cut(const Block& block, const DrawRow& row, const RowView& view, Shared& shared) const {
    if (row.top_k > 0) {
      RaiseFloorForTopK(block, row, shared);
      Gather(block, view, shared, 0);
      Select(block, view, shared, static_cast<uint64_t>(row.top_k), [](float) { return uint64_t{1}; });
    }
    if (row.top_p < 1.0) {
      const float peak = shared.peak;
      const auto mass = [&](float logit) { return TokenMass(logit, peak); };
      SumMasses(block, view, shared, row.top_k > 0, mass);
      const uint64_t total = shared.total;
      const uint64_t wanted = WantedMass(row.top_p, total);
      if (row.top_k == 0) {
        // Tokens of this mass or less have no more than total - wanted together: what is above them suffices.
        Gather(block, view, shared, (total - wanted) / static_cast<uint64_t>(plan.vocab_size));
      }
      Select(block, view, shared, wanted, mass);
    }
  }
  // Call it after Cut. For top-p, keys from the floor on may include tokens without mass, which share their leading digits with the last
  // kept token.
  LLMI_HD bool IsKept(const DrawRow& row, uint64_t key, const Shared& shared) const {
    return key >= shared.floor && (row.top_p == 1.0 || TokenMass(RankLogit(key), shared.peak) > 0);
  }

  // The best token of all chunks, whether there is one, and where keys begin.
  template <typename Block>
  LLMI_HD void FindBest(const Block& block, const DrawRow& row, Shared& shared) const {
    const DrawChunk* chunks = plan.chunks + block.x * plan.num_chunks;
    BlockMax(block, shared.room, &shared.best_key, [&](int thread) {
      uint64_t best = 0;
      for (int64_t c = thread; c < plan.num_chunks; c += block.num_threads) {
        const uint64_t key = RankKey(chunks[c].peak, chunks[c].id);
        best = key > best ? key : best;
      }
      return best;
    });
    const auto flags_of = [&](int thread) {
      int32_t flags = 0;
      for (int64_t c = thread; c < plan.num_chunks; c += block.num_threads) flags |= chunks[c].flags;
      return flags;
    };
    BlockReduce(block, shared.room, &shared.flags, flags_of, [](int32_t a, int32_t b) { return a | b; });
    block.ForEachThread([&](int thread) {
      if (thread > 0) return;
      const float peak = RankLogit(shared.best_key);
      const float law = row.temperature == 0.0f ? peak : peak / row.temperature;
      const bool is_finite = peak > -__builtin_inff() && law > -__builtin_inff() && law < __builtin_inff();
      shared.cannot_draw = shared.flags == kHasLogits && is_finite ? 0 : 1;
      shared.peak = law;
      shared.best = RankId(shared.best_key);
      // All above -inf; with min-p, all from its limit on.
      uint64_t floor = LeastRankKey(-__builtin_inff()) + (uint64_t{1} << 32);
      if (row.min_p > 0.0) {
        const uint64_t limit = LeastRankKey(MinPLimit(law, row.min_p));
        floor = limit > floor ? limit : floor;
      }
      shared.floor = floor;
    });
  }

  // The k-th largest of the groups' maxima has k logits from it on.
  template <typename Block>
  LLMI_HD void RaiseFloorForTopK(const Block& block, const DrawRow& row, Shared& shared) const {
    const int64_t count = plan.num_chunks * kDrawGroups;
    if (row.top_k > count) return;
    const float* peaks = plan.group_peaks + block.x * count;
    BlockSelect(
        block, shared.selection, count, static_cast<uint64_t>(row.top_k), SelectionEnd::kLastDigit,
        [&](int64_t i) { return RankKey(peaks[i], i); }, [](int64_t) { return uint64_t{1}; });
    block.ForEachThread([&](int thread) {
      if (thread > 0) return;
      const float peak = RankLogit(shared.selection.floor);
      const uint64_t key = LeastRankKey(row.temperature == 1.0f ? peak : peak / row.temperature);
      if (key > shared.floor) shared.floor = key;
    });
  }

  // Lists the tokens from the floor on whose mass exceeds `least_mass`; 0: of any mass.
  template <typename Block>
  LLMI_HD void Gather(const Block& block, const RowView& view, Shared& shared, uint64_t least_mass) const {
    block.ForEachThread([&](int thread) {
      if (thread == 0) shared.list_size = 0;
    });
    block.ForEachThread([&](int thread) {
      for (int64_t id = thread; id < view.vocab_size; id += block.num_threads) {
        const float law = view.Law(id);
        const uint64_t key = RankKey(law, id);
        if (key < shared.floor || (least_mass > 0 && TokenMass(law, shared.peak) <= least_mass)) continue;
        view.list[AtomicAdd(&shared.list_size, 1u)] = key;
      }
    });
  }

  // The mass from the floor on, of the list or of the vocabulary.
  template <typename Block, typename Mass>
  LLMI_HD void SumMasses(const Block& block, const RowView& view, Shared& shared, bool listed, const Mass& mass) const {
    BlockSum(block, shared.room, &shared.total, [&](int thread) {
      uint64_t sum = 0;
      const int64_t size = listed ? shared.list_size : view.vocab_size;
      for (int64_t i = thread; i < size; i += block.num_threads) {
        const uint64_t key = listed ? view.list[i] : RankKey(view.Law(i), i);
        if (key >= shared.floor) sum += mass(RankLogit(key));
      }
      return sum;
    });
  }

  // Raises the floor so that the keys of the list from it on are the fewest, best first, whose weights reach `wanted`; leaves it
  // where all together do not.
  template <typename Block, typename Weight>
  LLMI_HD void Select(const Block& block, const RowView& view, Shared& shared, uint64_t wanted, const Weight& weight) const {
    const auto key = [&](int64_t i) { return view.list[i] < shared.floor ? 0 : view.list[i]; };
    BlockSelect(block, shared.selection, shared.list_size, wanted, SelectionEnd::kWhereReached, key,
                [&](int64_t i) { return weight(RankLogit(view.list[i])); });
    block.ForEachThread([&](int thread) {
      if (thread == 0 && shared.selection.floor > shared.floor) shared.floor = shared.selection.floor;
    });
  }

  // runner(thread): the best of the thread's.
  template <typename Block, typename Best>
  LLMI_HD void FindWinner(const Block& block, Shared& shared, const Best& runner) const {
    BlockReduce(block, shared.room, &shared.winner, runner, [](const Runner& a, const Runner& b) { return a.Beats(b) ? a : b; });
  }
};

}  // namespace llmi::cuda

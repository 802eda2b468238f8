// Selects the tokens that top-k and top-p keep from a row's list (kernels/cuda/draw_gather_kernel.h), digit by digit. Nothing depends on
// the order of the list or of any sum: keys are compared, counts and masses are integers.
#pragma once

#include "kernels/cuda/draw_race.h"

namespace llmi::cuda {

struct LawSelection {
  Selection selection;
  ReductionRoom room;
  DrawState state;
  Runner winner;
  uint64_t total;

  // Raises the floor to the least key that is kept, of the row whose state is loaded.
  template <typename Block>
  LLMI_HD void Select(const Block& block, const DrawRow& row, const uint64_t* list) {
    const auto key = [&](int64_t i) { return LoadFresh(list + i) < state.floor ? 0 : LoadFresh(list + i); };
    const auto raise = [&](uint64_t wanted, const auto& weight) {
      BlockSelect(block, selection, state.list_size, wanted, SelectionEnd::kWhereReached, key, weight);
      block.ForEachThread([&](int thread) {
        if (thread == 0 && selection.floor > state.floor) state.floor = selection.floor;
      });
    };
    if (row.top_k > 0) raise(static_cast<uint64_t>(row.top_k), [](int64_t) { return uint64_t{1}; });
    if (!(row.top_p < 1.0)) return;
    const auto mass = [&](int64_t i) { return TokenMass(RankLogit(LoadFresh(list + i)), state.peak); };
    if (MassDecides(row)) {
      block.ForEachThread([&](int thread) {
        if (thread == 0) total = state.total;
      });
    } else {
      BlockSum(block, room, &total, [&](int thread) {
        uint64_t sum = 0;
        for (int64_t i = thread; i < state.list_size; i += block.num_threads) sum += key(i) != 0 ? mass(i) : 0;
        return sum;
      });
    }
    raise(WantedMass(row.top_p, total), mass);
  }

  // Call it after Select. For top-p, keys from the floor on may include tokens without mass, which share their leading digits with the last
  // kept token.
  LLMI_HD bool IsKept(const DrawRow& row, uint64_t key) const {
    return key >= state.floor && (row.top_p == 1.0 || TokenMass(RankLogit(key), state.peak) > 0);
  }
};

}  // namespace llmi::cuda

// Selects the tokens that a row's law keeps: by temperature, min-p, top-k and top-p, after masks and penalties
// (kernels/cuda/draw_scan_kernel.h). Base of the kernels that draw, one block per row.
//
// If top-k or top-p cut, a list of rank keys of the tokens that may be kept is gathered in one pass over the logits, then selected from
// digit by digit. Nothing depends on the order of the list or of any sum: keys are compared, counts and masses are integers.
#pragma once

#include <cstddef>

#include "kernels/cuda/draw_scan_kernel.h"

namespace llmi::cuda {

constexpr int kDrawThreads = 512;
constexpr int kDrawBins = 2048;  // of a digit of 11 bits

struct LawSelection {
  struct Shared {
    uint64_t bins[kDrawBins];
    uint64_t partial[kDrawThreads];
    double scores[kDrawThreads];
    int32_t ids[kDrawThreads];
    int32_t flags[kDrawThreads];
    // Of the row.
    float peak;
    int32_t best;
    int32_t cannot_draw;
    uint64_t floor;  // keys below it are cut
    uint64_t total;  // mass of those that are not
    uint32_t list_size;
    // Of a selection.
    uint64_t above;  // sum of all keys above those that begin with `prefix`
    uint64_t prefix;
    int32_t is_done;
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
    block.ForEachThread([&](int thread) {
      float peak = -__builtin_inff();
      int32_t best = INT32_MAX;
      int32_t flags = 0;
      for (int64_t c = thread; c < plan.num_chunks; c += block.num_threads) {
        const DrawChunk chunk = chunks[c];
        flags |= chunk.flags;
        if (!(chunk.peak > peak)) continue;
        peak = chunk.peak;
        best = chunk.id;
      }
      shared.scores[thread] = static_cast<double>(peak);
      shared.ids[thread] = best;
      shared.flags[thread] = flags;
    });
    block.ForEachThread([&](int thread) {
      if (thread > 0) return;
      const int64_t count = plan.num_chunks < block.num_threads ? plan.num_chunks : block.num_threads;
      float peak = -__builtin_inff();
      int32_t best = INT32_MAX;
      int32_t flags = 0;
      for (int64_t i = 0; i < count; ++i) {
        const auto own = static_cast<float>(shared.scores[i]);
        flags |= shared.flags[i];
        if (own > peak || (own == peak && shared.ids[i] < best)) {
          peak = own;
          best = shared.ids[i];
        }
      }
      const float law = row.temperature == 0.0f ? peak : peak / row.temperature;
      const bool is_finite = peak > -__builtin_inff() && law > -__builtin_inff() && law < __builtin_inff();
      shared.cannot_draw = flags == kHasLogits && is_finite ? 0 : 1;
      shared.peak = law;
      shared.best = best;
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
    if (row.top_k > count || count > kDrawBins) return;
    const float* peaks = plan.group_peaks + block.x * count;
    block.ForEachThread([&](int thread) {
      for (int64_t i = thread; i < count; i += block.num_threads) shared.bins[i] = RankKey(peaks[i], i);
    });
    block.ForEachThread([&](int thread) {
      for (int64_t i = thread; i < count; i += block.num_threads) {
        int64_t rank = 1;
        for (int64_t j = 0; j < count; ++j) rank += shared.bins[j] > shared.bins[i] ? 1 : 0;
        if (rank != row.top_k) continue;
        const float peak = RankLogit(shared.bins[i]);
        const uint64_t key = LeastRankKey(row.temperature == 1.0f ? peak : peak / row.temperature);
        if (key > shared.floor) shared.floor = key;
      }
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
    block.ForEachThread([&](int thread) {
      uint64_t sum = 0;
      const int64_t size = listed ? shared.list_size : view.vocab_size;
      for (int64_t i = thread; i < size; i += block.num_threads) {
        const uint64_t key = listed ? view.list[i] : RankKey(view.Law(i), i);
        if (key >= shared.floor) sum += mass(RankLogit(key));
      }
      shared.partial[thread] = sum;
    });
    FoldSums(block, shared.partial, &shared.total);
  }

  // Adds the threads' sums up, by halves.
  template <typename Block, typename T>
  LLMI_HD void FoldSums(const Block& block, T* sums, T* total) const {
    for (int half = kDrawThreads / 2; half > 0; half /= 2) {
      block.ForEachThread([&](int thread) {
        if (thread < half) sums[thread] += sums[thread + half];
      });
    }
    block.ForEachThread([&](int thread) {
      if (thread == 0) *total = sums[0];
    });
  }

  // Raises the floor so that the keys of the list from it on are the fewest, best first, whose weights reach `wanted`; leaves it
  // where all together do not. Digit by digit from the top: the bin in which the sum is reached holds the digit of the last key.
  template <typename Block, typename Weight>
  LLMI_HD void Select(const Block& block, const RowView& view, Shared& shared, uint64_t wanted, const Weight& weight) const {
    constexpr int kWidths[] = {11, 11, 10, 11, 11, 10};
    constexpr int kBinsPerGroup = 32;
    int shift = 64;
    block.ForEachThread([&](int thread) {
      if (thread > 0) return;
      shared.above = 0;
      shared.prefix = 0;
      shared.is_done = 0;
    });
    for (int digit = 0; digit < 6; ++digit) {
      const int width = kWidths[digit];
      const int above_shift = shift;
      shift -= width;
      block.ForEachThread([&](int thread) {
        for (int i = thread; i < kDrawBins; i += block.num_threads) shared.bins[i] = 0;
      });
      block.ForEachThread([&](int thread) {
        for (int64_t i = thread; i < shared.list_size; i += block.num_threads) {
          const uint64_t key = view.list[i];
          if (key < shared.floor || (digit > 0 && key >> above_shift != shared.prefix)) continue;
          AtomicAdd(&shared.bins[key >> shift & ((1u << width) - 1)], weight(RankLogit(key)));
        }
      });
      block.ForEachThread([&](int thread) {
        if (thread >= kDrawBins / kBinsPerGroup) return;
        uint64_t sum = 0;
        for (int i = 0; i < kBinsPerGroup; ++i) sum += shared.bins[thread * kBinsPerGroup + i];
        shared.partial[thread] = sum;
      });
      block.ForEachThread([&](int thread) {
        if (thread > 0) return;
        uint64_t sum = shared.above;
        int group = kDrawBins / kBinsPerGroup - 1;
        for (; group > 0 && sum + shared.partial[group] < wanted; --group) sum += shared.partial[group];
        int bin = group * kBinsPerGroup + kBinsPerGroup - 1;
        for (; bin > group * kBinsPerGroup && sum + shared.bins[bin] < wanted; --bin) sum += shared.bins[bin];
        shared.prefix = shared.prefix << width | static_cast<uint64_t>(bin);
        shared.above = sum;
        // The whole bin is needed (or more than there is: then the floor stays): digits below it decide nothing.
        const uint64_t least = shared.prefix << shift;
        if (sum + shared.bins[bin] > wanted && shift > 0) return;
        shared.is_done = 1;
        if (sum + shared.bins[bin] >= wanted && least > shared.floor) shared.floor = least;
      });
      if (shared.is_done != 0) break;
    }
  }

  // Of the threads' scores and ids the least score, the lowest id among equals: the first thread's then.
  template <typename Block>
  LLMI_HD void FindWinner(const Block& block, Shared& shared) const {
    for (int half = kDrawThreads / 2; half > 0; half /= 2) {
      block.ForEachThread([&](int thread) {
        if (thread >= half) return;
        const int other = thread + half;
        if (shared.scores[other] > shared.scores[thread]) return;
        if (shared.scores[other] == shared.scores[thread] && shared.ids[other] >= shared.ids[thread]) return;
        shared.scores[thread] = shared.scores[other];
        shared.ids[thread] = shared.ids[other];
      });
    }
  }
};

}  // namespace llmi::cuda

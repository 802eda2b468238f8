// The filters of rows that have more than temperature, min-p, top-k and top-p in this order (kernels/draws/filters.h): a launch between the
// scan and the draw of their rows, which then draws from the changed row as it is.
#pragma once

#include <cstddef>

#include "kernels/cuda/draw_settle.h"
#include "kernels/draws/filters.h"

namespace llmi::cuda {

// Block x: a row. Steps change the row in place, one after the other, as on the host.
struct FilterKernel {
  static constexpr int kLanes = 16;  // of a sum
  static constexpr int kTile = 2048;
  struct Shared {
    union {
      Selection selection;
      SortRoom sort;
      double terms[kTile];
    };
    ReductionRoom room;
    double lanes[kLanes];
    double sum;
    uint64_t best_key;
    uint64_t total;
    uint64_t count;
    uint64_t floor;
    RankedSelection ranked;
    uint64_t squares[2];  // the sum of the squares of masses: the bits below the 40th, and those above
    uint64_t keys[kTopHTokens];
    uint32_t ids[kTopHTokens];
    uint32_t num_keys;
    float divisor;
    LogitSummary summary;
    DrawState state;
  };
  static constexpr size_t kSharedBytes = sizeof(Shared);
  DrawPlan plan;

  template <typename Visit>
  void ForEachPointer(const Visit& visit) const {
    plan.ForEachPointer(visit);
  }

  template <typename Block>
  LLMI_HD void operator()(const Block& block) const {
    const DrawRow& draw = plan.rows[block.x];
    if (!IsFiltered(draw)) return;
    Shared& shared = *reinterpret_cast<Shared*>(block.shared);
    SummariseRow(block, plan, block.x, shared.room, &shared.summary);
    const Row row = {plan.Logits(draw), plan.vocab_size};
    block.ForEachThread([&](int thread) {
      if (thread == 0) shared.best_key = shared.summary.best_key;
    });
    float peak = RankLogit(shared.best_key);
    for (int64_t i = draw.filter_begin; i < draw.filter_end && shared.summary.flags == kHasLogits && IsFinite(peak); ++i) {
      Run(block, plan.filters[i], row, peak, shared);
      peak = FindBest(block, row, shared);
    }
    // The summary of the row as it is now.
    block.ForEachThread([&](int thread) {
      if (thread == 0) shared.summary = {shared.best_key, shared.summary.flags | (peak < __builtin_inff() ? 0 : kIsBad)};
    });
    SettleRow(block, plan, block.x, shared.summary, shared.selection, &shared.state);
  }

 private:
  struct Row {
    float* logits;
    int64_t size;

    LLMI_HD bool IsCut(int64_t id) const { return !(logits[id] > -__builtin_inff()); }
    // 0 where it is cut.
    LLMI_HD uint64_t Key(int64_t id) const { return IsCut(id) ? 0 : RankKey(logits[id], id); }
  };

  LLMI_HD static bool IsFinite(float peak) { return peak > -__builtin_inff() && peak < __builtin_inff(); }

  template <typename Block>
  LLMI_HD void Run(const Block& block, const FilterStep& step, const Row& row, float peak, Shared& shared) const {
    switch (step.kind) {
      case FilterKind::kTopNSigma: return KeepTopNSigma(block, step.value, row, peak, shared);
      case FilterKind::kTemperature: return Temper(block, static_cast<float>(step.value), row);
      case FilterKind::kDynamicTemperature: return TemperByEntropy(block, step, row, peak, shared);
      case FilterKind::kMinP: {
        const float limit = MinPLimit(peak, step.value);
        return CutWhere(block, row, [&](int64_t id) { return row.logits[id] < limit; });
      }
      case FilterKind::kTopK: return KeepTopK(block, static_cast<uint64_t>(step.value), row, shared);
      case FilterKind::kTopP: return KeepTopP(block, step.value, row, peak, shared);
      case FilterKind::kTypicalP: return KeepTypical(block, step.value, row, peak, shared);
      case FilterKind::kEpsilonCutoff: SumMasses(block, row, peak, shared); return CutBelow(block, step.value, row, peak, shared);
      case FilterKind::kEtaCutoff:
        SumOffsets(block, row, peak, shared);
        return CutBelow(block, EtaOf(step.value, EntropyOf(shared.total, shared.sum / static_cast<double>(shared.total))), row, peak,
                        shared);
      case FilterKind::kTopH: return KeepTopH(block, step.value, row, peak, shared);
      case FilterKind::kPLess: return KeepPLess(block, row, peak, shared);
      case FilterKind::kXtc: return CutTopChoices(block, step.value, row, peak, shared);
    }
  }

  // Returns the largest logit.
  template <typename Block>
  LLMI_HD float FindBest(const Block& block, const Row& row, Shared& shared) const {
    BlockMax(block, shared.room, &shared.best_key, [&](int thread) {
      uint64_t best = RankKey(-__builtin_inff(), 0);
      for (int64_t id = thread; id < row.size; id += block.num_threads) {
        const uint64_t key = RankKey(row.logits[id], id);
        best = key > best ? key : best;
      }
      return best;
    });
    return RankLogit(shared.best_key);
  }

  // *sum = the sum of value(id) over the tokens that are not cut.
  template <typename Block, typename Value>
  LLMI_HD void SumKept(const Block& block, const Row& row, Shared& shared, uint64_t* sum, const Value& value) const {
    BlockSum(block, shared.room, sum, [&](int thread) {
      uint64_t own = 0;
      for (int64_t id = thread; id < row.size; id += block.num_threads) own += row.IsCut(id) ? 0 : static_cast<uint64_t>(value(id));
      return own;
    });
  }
  template <typename Block>
  LLMI_HD void SumMasses(const Block& block, const Row& row, float peak, Shared& shared) const {
    SumKept(block, row, shared, &shared.total, [&](int64_t id) { return TokenMass(row.logits[id], peak); });
  }

  // shared.sum = the sum of term(id) over all ids, in the host's order (LaneSum in sampling/filters/row.h).
  template <typename Block, typename Term>
  LLMI_HD void SumInLanes(const Block& block, const Row& row, Shared& shared, const Term& term) const {
    block.ForEachThread([&](int thread) {
      if (thread < kLanes) shared.lanes[thread] = 0.0;
    });
    for (int64_t first = 0; first < row.size; first += kTile) {
      const int64_t size = row.size - first < kTile ? row.size - first : kTile;
      block.ForEachThread([&](int thread) {
        for (int64_t i = thread; i < size; i += block.num_threads) shared.terms[i] = term(first + i);
      });
      block.ForEachThread([&](int thread) {
        if (thread >= kLanes) return;
        double sum = shared.lanes[thread];
        for (int64_t i = thread; i < size; i += kLanes) sum += shared.terms[i];
        shared.lanes[thread] = sum;
      });
    }
    block.ForEachThread([&](int thread) {
      if (thread > 0) return;
      for (int half = kLanes / 2; half > 0; half /= 2) {
        for (int lane = 0; lane < half; ++lane) shared.lanes[lane] += shared.lanes[lane + half];
      }
      shared.sum = shared.lanes[0];
    });
  }
  // Masses, and their offsets from the peak.
  template <typename Block>
  LLMI_HD void SumOffsets(const Block& block, const Row& row, float peak, Shared& shared) const {
    SumMasses(block, row, peak, shared);
    SumInLanes(block, row, shared, [&](int64_t id) { return OffsetTerm(TokenMass(row.logits[id], peak), row.logits[id], peak); });
  }

  template <typename Block, typename IsCut>
  LLMI_HD void CutWhere(const Block& block, const Row& row, const IsCut& is_cut) const {
    block.ForEachThread([&](int thread) {
      for (int64_t id = thread; id < row.size; id += block.num_threads) {
        if (!row.IsCut(id) && is_cut(id)) row.logits[id] = -__builtin_inff();
      }
    });
  }

  template <typename Block>
  LLMI_HD void Temper(const Block& block, float divisor, const Row& row) const {
    block.ForEachThread([&](int thread) {
      for (int64_t id = thread; id < row.size; id += block.num_threads) row.logits[id] = row.logits[id] / divisor;
    });
  }

  template <typename Block>
  LLMI_HD void TemperByEntropy(const Block& block, const FilterStep& step, const Row& row, float peak, Shared& shared) const {
    SumKept(block, row, shared, &shared.count, [](int64_t) { return 1; });
    if (shared.count <= 1) return;
    SumOffsets(block, row, peak, shared);
    block.ForEachThread([&](int thread) {
      if (thread > 0) return;
      const double entropy = EntropyOf(shared.total, shared.sum / static_cast<double>(shared.total));
      const double chosen = DynamicTemperature(step, entropy, shared.count);
      shared.divisor = chosen < kLeastTemperature ? 0.0f : static_cast<float>(chosen);
    });
    if (shared.divisor == 0.0f) return CutWhere(block, row, [&](int64_t id) { return row.Key(id) != shared.best_key; });
    Temper(block, shared.divisor, row);
  }

  template <typename Block>
  LLMI_HD void KeepTopNSigma(const Block& block, double n, const Row& row, float peak, Shared& shared) const {
    SumKept(block, row, shared, &shared.count, [](int64_t) { return 1; });
    const auto count = static_cast<double>(shared.count);
    const auto value = [&](int64_t id) { return static_cast<double>(row.logits[id]); };
    SumInLanes(block, row, shared, [&](int64_t id) { return row.IsCut(id) ? 0.0 : value(id); });
    const double mean = shared.sum / count;
    SumInLanes(block, row, shared, [&](int64_t id) { return row.IsCut(id) ? 0.0 : (value(id) - mean) * (value(id) - mean); });
    const double limit = static_cast<double>(peak) - n * SqrtF64(shared.sum / count);
    CutWhere(block, row, [&](int64_t id) { return value(id) < limit; });
  }

  template <typename Block>
  LLMI_HD void KeepTopK(const Block& block, uint64_t k, const Row& row, Shared& shared) const {
    BlockSelect(
        block, shared.selection, row.size, k, SelectionEnd::kWhereReached, [&](int64_t id) { return row.Key(id); },
        [](int64_t) { return 1; });
    CutWhere(block, row, [&](int64_t id) { return row.Key(id) < shared.selection.floor; });
  }

  template <typename Block>
  LLMI_HD void KeepTopP(const Block& block, double mass, const Row& row, float peak, Shared& shared) const {
    SumMasses(block, row, peak, shared);
    const auto mass_of = [&](int64_t id) { return TokenMass(row.logits[id], peak); };
    BlockSelect(
        block, shared.selection, row.size, WantedMass(mass, shared.total), SelectionEnd::kWhereReached,
        [&](int64_t id) { return row.Key(id); }, mass_of);
    CutWhere(block, row, [&](int64_t id) { return row.Key(id) < shared.selection.floor || mass_of(id) == 0; });
  }

  template <typename Block>
  LLMI_HD void KeepTypical(const Block& block, double mass, const Row& row, float peak, Shared& shared) const {
    SumOffsets(block, row, peak, shared);
    const double mean = shared.sum / static_cast<double>(shared.total);
    const auto mass_of = [&](int64_t id) { return TokenMass(row.logits[id], peak); };
    // The nearer to the mean, the larger.
    const auto key = [&](int64_t id) {
      const double distance = mean - (static_cast<double>(row.logits[id]) - static_cast<double>(peak));
      return row.IsCut(id) ? 0 : ~(__builtin_bit_cast(uint64_t, distance) & ~(uint64_t{1} << 63));
    };
    BlockSelectRanked(block, shared.selection, &shared.ranked, row.size, WantedMass(mass, shared.total), key, mass_of);
    CutWhere(block, row, [&](int64_t id) { return !shared.ranked.Has(key(id), id); });
  }

  // Cuts tokens with a smaller probability, but none that is as likely as the likeliest. Call it after SumMasses.
  template <typename Block>
  LLMI_HD void CutBelow(const Block& block, double probability, const Row& row, float peak, Shared& shared) const {
    const double least = probability * static_cast<double>(shared.total);
    CutWhere(block, row, [&](int64_t id) { return static_cast<double>(TokenMass(row.logits[id], peak)) < least && row.logits[id] < peak; });
  }

  template <typename Block>
  LLMI_HD void KeepTopH(const Block& block, double share, const Row& row, float peak, Shared& shared) const {
    BlockSelect(
        block, shared.selection, row.size, uint64_t{kTopHTokens}, SelectionEnd::kWhereReached, [&](int64_t id) { return row.Key(id); },
        [](int64_t) { return 1; });
    block.ForEachThread([&](int thread) {
      if (thread > 0) return;
      shared.floor = shared.selection.floor;
      shared.num_keys = 0;
    });
    block.ForEachThread([&](int thread) {
      for (int64_t id = thread; id < row.size; id += block.num_threads) {
        if (row.IsCut(id) || row.Key(id) < shared.floor) continue;
        const uint32_t place = AtomicAdd(&shared.num_keys, 1u);
        shared.keys[place] = row.Key(id);
        shared.ids[place] = static_cast<uint32_t>(id);
      }
    });
    BlockSort(block, shared.sort, shared.keys, shared.ids, static_cast<int>(shared.num_keys));
    block.ForEachThread([&](int thread) {
      if (thread == 0) shared.floor = shared.keys[NumInTopH(share, peak, shared) - 1];
    });
    CutWhere(block, row, [&](int64_t id) { return row.Key(id) < shared.floor; });
  }
  // One thread's, of the ranked keys.
  LLMI_HD static uint32_t NumInTopH(double share, float peak, const Shared& shared) {
    uint64_t total = 0;
    for (uint32_t i = 0; i < shared.num_keys; ++i) total += TokenMass(RankLogit(shared.keys[i]), peak);
    const auto term = [&](uint32_t i) {
      const float logit = RankLogit(shared.keys[i]);
      return TopHTerm(TokenMass(logit, peak), total, static_cast<double>(logit) - static_cast<double>(peak));
    };
    double all = 0;
    for (uint32_t i = 0; i < shared.num_keys; ++i) all += term(i);
    const double most = share * all;
    uint32_t count = 0;
    for (double sum = 0; count < shared.num_keys; ++count) {
      sum += term(count);
      if (!(sum <= most)) break;
    }
    return count > 1 ? count : 1;
  }

  template <typename Block>
  LLMI_HD void KeepPLess(const Block& block, const Row& row, float peak, Shared& shared) const {
    constexpr int kLowBits = 40;
    const auto mass_of = [&](int64_t id) { return static_cast<Wide>(TokenMass(row.logits[id], peak)); };
    SumMasses(block, row, peak, shared);
    const auto low = [&](int64_t id) { return static_cast<uint64_t>(mass_of(id) * mass_of(id)) & ((uint64_t{1} << kLowBits) - 1); };
    SumKept(block, row, shared, &shared.squares[0], low);
    SumKept(block, row, shared, &shared.squares[1],
            [&](int64_t id) { return static_cast<uint64_t>(mass_of(id) * mass_of(id) >> kLowBits); });
    const Wide squares = (static_cast<Wide>(shared.squares[1]) << kLowBits) + shared.squares[0];
    CutWhere(block, row, [&](int64_t id) { return mass_of(id) * shared.total < squares; });
  }

  template <typename Block>
  LLMI_HD void CutTopChoices(const Block& block, double threshold, const Row& row, float peak, Shared& shared) const {
    SumMasses(block, row, peak, shared);
    const double least = threshold * static_cast<double>(shared.total);
    const auto is_choice = [&](int64_t id) { return !row.IsCut(id) && !(static_cast<double>(TokenMass(row.logits[id], peak)) < least); };
    // The last of them stays: the largest of the keys' complements.
    BlockMax(block, shared.room, &shared.floor, [&](int thread) {
      uint64_t last = 0;
      for (int64_t id = thread; id < row.size; id += block.num_threads) {
        const uint64_t own = is_choice(id) ? ~row.Key(id) : 0;
        last = own > last ? own : last;
      }
      return last;
    });
    CutWhere(block, row, [&](int64_t id) { return is_choice(id) && ~row.Key(id) != shared.floor; });
  }

  __extension__ using Wide = unsigned __int128;
};

}  // namespace llmi::cuda

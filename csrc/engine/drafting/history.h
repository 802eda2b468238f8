// The time that drafters took and how often their drafts were accepted, over all sequences. Engine thread only.
#pragma once

#include <array>
#include <cstdint>
#include <unordered_map>

#include "engine/running.h"
#include "speculative/acceptance_record.h"
#include "speculative/drafter.h"
#include "speculative/cost_curve.h"
#include "speculative/node_rates.h"

namespace llmi {

// The history of one drafter. Times are smoothed.
struct DrafterHistory {
  explicit DrafterHistory(const Drafter& drafter);
  Price per_token;                           // that is proposed
  Price per_start_token;                     // of a sequence's tokens when its first draft is proposed
  std::array<AcceptanceRecord, 2> by_depth;  // [greedy]: greedy tokens are accepted more often
  std::array<NodeRates, 2> rates;
  std::array<HeadRates, 2> head;
  std::array<DraftBudget, 2> budget;
};

class DrafterHistories {
 public:
  // The drafter's history, which is empty the first time. The reference is valid until Bound.
  DrafterHistory& Of(Drafter* drafter);
  // The history of the sequence's drafter.
  DrafterHistory& Of(const Sample& sample) { return Of(sample.request().speculation->drafter.get()); }
  // The account of the sequence's drafts: its own where drafts may depend on it alone.
  DraftBudget& BudgetOf(Sample& sample);
  // Forgets all drafters if there are too many: some of them may no longer exist.
  void Bound();

 private:
  std::unordered_map<Drafter*, DrafterHistory> histories_;
};

}  // namespace llmi

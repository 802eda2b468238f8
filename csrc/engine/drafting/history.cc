#include "engine/drafting/history.h"

namespace llmi {
namespace {

constexpr size_t kMaxKnownDrafters = 256;

}  // namespace

DrafterHistory::DrafterHistory(const Drafter& drafter)
    : by_depth{AcceptanceRecord(drafter.traits().expected_acceptance), AcceptanceRecord(drafter.traits().expected_acceptance)},
      rates{NodeRates(drafter, false), NodeRates(drafter, true)},
      head{HeadRates(false), HeadRates(true)},
      budget{DraftBudget(drafter.traits().needs_layer), DraftBudget(drafter.traits().needs_layer)} {}

DrafterHistory& DrafterHistories::Of(Drafter* drafter) { return histories_.try_emplace(drafter, *drafter).first->second; }

DraftBudget& DrafterHistories::BudgetOf(Sample& sample) {
  if (sample.judges_drafts()) return sample.drafting.lengths()->budget;
  return Of(sample).budget[sample.request().params.greedy()];
}

void DrafterHistories::Bound() {
  if (histories_.size() > kMaxKnownDrafters) histories_.clear();
}

}  // namespace llmi

#include "engine/drafting/history.h"

namespace llmi {
namespace {

constexpr size_t kMaxKnownDrafters = 256;

}  // namespace

DrafterHistory::DrafterHistory(const Drafter& drafter)
    : rates{NodeRates(drafter, false), NodeRates(drafter, true)},
      head{HeadRates(false), HeadRates(true)},
      budget{DraftBudget(drafter.needs_head()), DraftBudget(drafter.needs_head())} {
  for (auto& records : acceptance) {
    for (size_t i = 0; i < kNumConfidences; ++i) records[i] = AcceptanceRecord(drafter.expected_acceptance(static_cast<int32_t>(i)));
  }
}

DrafterHistory& DrafterHistories::Of(Drafter* drafter) { return histories_.try_emplace(drafter, *drafter).first->second; }

DraftBudget& DrafterHistories::BudgetOf(Sample& sample) {
  if (sample.judges_drafts()) return sample.drafting.nodes()->budget;
  return Of(sample).budget[sample.request().params.greedy()];
}

void DrafterHistories::Bound() {
  if (histories_.size() > kMaxKnownDrafters) histories_.clear();
}

void DrafterHistories::SetExpectedAcceptance(Sample& sample) {
  if (sample.drafting.has_seen_drafts()) return;
  const Request& request = sample.request();
  const SpeculationConfig& speculation = *request.speculation;
  const bool greedy = request.params.greedy();
  // Under acceptance and rejection tokens depend on draft lengths, so the acceptance of other sequences must not influence them.
  if (speculation.verification != VerificationKind::kCoupled) {
    sample.drafting.set_expected(DrafterHistory(*speculation.drafter).acceptance[greedy]);
    return;
  }
  AcceptanceRecords expected = Of(speculation.drafter.get()).acceptance[greedy];
  for (AcceptanceRecord& record : expected) record = record.AsPrior();
  sample.drafting.set_expected(expected);
}

}  // namespace llmi

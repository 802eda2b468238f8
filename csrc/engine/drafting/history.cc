#include "engine/drafting/history.h"

#include <algorithm>

namespace llmi {
namespace {

constexpr size_t kMaxKnownDrafters = 256;

}  // namespace

DrafterHistory::DrafterHistory(const Drafter& drafter) {
  for (auto& records : acceptance) {
    for (size_t i = 0; i < kNumConfidences; ++i) records[i] = AcceptanceRecord(drafter.expected_acceptance(static_cast<int32_t>(i)));
  }
}

DrafterHistory& DrafterHistories::Of(Drafter* drafter) { return histories_.try_emplace(drafter, *drafter).first->second; }

void DrafterHistories::Bound() {
  if (histories_.size() > kMaxKnownDrafters) histories_.clear();
}

void DrafterHistories::TakePrior(Sample& sample) {
  if (std::any_of(sample.acceptance.begin(), sample.acceptance.end(), [](const auto& record) { return !record.empty(); })) return;
  const Request& request = sample.request();
  const SpeculationConfig& speculation = *request.speculation;
  const bool greedy = request.params.greedy();
  // The acceptance of other sequences may enter only where tokens do not depend on lengths.
  if (speculation.verification != VerificationKind::kCoupled) {
    sample.acceptance = DrafterHistory(*speculation.drafter).acceptance[greedy];
    return;
  }
  const auto& of_others = Of(speculation.drafter.get()).acceptance[greedy];
  std::transform(of_others.begin(), of_others.end(), sample.acceptance.begin(), [](const auto& record) { return record.AsPrior(); });
}

}  // namespace llmi

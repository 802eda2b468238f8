#include "speculative/acceptance_record.h"

#include <algorithm>
#include <cmath>

namespace llmi {
namespace {

constexpr double kForget = 0.9;
constexpr double kFade = 0.985;
// The expected rate has the weight of kPriorWeight drafts, and of kStatedWeight more for each unit of its distance from one half. A larger
// weight would keep the rate of a drafter that never hits so high that drafting seems to pay.
constexpr double kStatedWeight = 10.0;
constexpr double kPriorWeight = 1.0;
constexpr double kHistoryWeight = 3.0;  // the most drafts that a drafter's history with other sequences weighs

}  // namespace

void AcceptanceRecord::Add(int64_t depth, int64_t num_accepted) {
  const int64_t reached = std::min({depth, num_accepted + 1, kMaxDraftDepth});
  for (int64_t i = 0; i < reached; ++i) {
    const auto index = static_cast<size_t>(i);
    tried_[index] = kForget * tried_[index] + 1;
    accepted_[index] = kForget * accepted_[index] + (i < num_accepted ? 1 : 0);
  }
}

void AcceptanceRecord::Rest() {
  for (double& tried : tried_) tried *= kFade;
  for (double& accepted : accepted_) accepted *= kFade;
}

std::array<double, kMaxDraftDepth> AcceptanceRecord::Rates() const {
  std::array<double, kMaxDraftDepth> rates{};
  const double weight = kPriorWeight + kStatedWeight * std::abs(expected_ - 0.5);
  double prior = expected_;
  for (size_t i = 0; i < rates.size(); ++i) {
    rates[i] = (accepted_[i] + prior * weight) / (tried_[i] + weight);
    prior = rates[i];
  }
  return rates;
}

AcceptanceRecord AcceptanceRecord::AsPrior() const {
  AcceptanceRecord prior(expected_);
  for (size_t i = 0; i < tried_.size(); ++i) {
    const double share = tried_[i] > kHistoryWeight ? kHistoryWeight / tried_[i] : 1.0;
    prior.tried_[i] = tried_[i] * share;
    prior.accepted_[i] = accepted_[i] * share;
  }
  return prior;
}

}  // namespace llmi

#include "speculative/node_rates.h"

#include <algorithm>

#include "speculative/drafter.h"

namespace llmi {
namespace {

constexpr float kNodeForget = 0.97f;           // weight of the earlier nodes at each new one
constexpr float kNodeFade = 0.99f;             // at each node that is left out
constexpr float kPriorNodes = 3.0f;            // nodes that the expected rate weighs
constexpr float kHistoryNodes = 20.0f;         // the most nodes that other sequences weigh
constexpr double kHeadFirst[] = {0.33, 0.45};  // [greedy]
constexpr double kHeadNext = 0.4;
constexpr double kHeadWeight = 1.0 / 16;
constexpr double kHeadFade = 0.003;
constexpr double kStepShare = 0.005;
constexpr double kMostBalance[] = {0.6, 1.2};  // [with heads]
constexpr double kFirstBalance = 0.5;          // of the most
constexpr double kRecent = 1.0 / 12;
constexpr double kLeastBalance = -0.1;  // one long draft that failed must not end drafting for good

}  // namespace

NodeRates::NodeRates(const Drafter& drafter, bool greedy) {
  for (int32_t kind = 0; kind < kNumNodeKinds; ++kind) {
    expected_[static_cast<size_t>(kind)] = static_cast<float>(drafter.expected_rate(kind, greedy));
  }
}

double NodeRates::RateOf(int16_t kind) const {
  const auto i = static_cast<size_t>(kind);
  return static_cast<double>((accepted_[i] + kPriorNodes * expected_[i]) / (tried_[i] + kPriorNodes));
}

double NodeRates::Rate(NodeKind kind) const {
  const double rate = RateOf(kind.first);
  return kind.second < 0 ? rate : 1 - (1 - rate) * (1 - RateOf(kind.second));
}

void NodeRates::AddTo(int16_t kind, bool accepted) {
  const auto i = static_cast<size_t>(kind);
  tried_[i] = kNodeForget * tried_[i] + 1;
  accepted_[i] = kNodeForget * accepted_[i] + (accepted ? 1.0f : 0.0f);
}

void NodeRates::Add(NodeKind kind, bool accepted) {
  AddTo(kind.first, accepted);
  if (kind.second >= 0 && kind.second != kind.first) AddTo(kind.second, accepted);
}

void NodeRates::Rest(NodeKind kind) {
  for (const int16_t part : {kind.first, kind.second}) {
    if (part < 0) continue;
    tried_[static_cast<size_t>(part)] *= kNodeFade;
    accepted_[static_cast<size_t>(part)] *= kNodeFade;
  }
}

NodeRates NodeRates::AsPrior() const {
  NodeRates prior = *this;
  for (size_t i = 0; i < tried_.size(); ++i) {
    const float share = tried_[i] > kHistoryNodes ? kHistoryNodes / tried_[i] : 1.0f;
    prior.tried_[i] *= share;
    prior.accepted_[i] *= share;
  }
  return prior;
}

HeadRates::HeadRates(bool greedy) : expected_(kHeadFirst[greedy]), first_(expected_), next_(kHeadNext) {}

void HeadRates::Learn(bool is_first, double rate) {
  double& mean = is_first ? first_ : next_;
  mean += kHeadWeight * (rate - mean);
}

void HeadRates::Rest() { first_ += kHeadFade * (expected_ - first_); }

DraftBudget::DraftBudget(bool has_head) : most_(kMostBalance[has_head]), balance_(kFirstBalance * most_) {}

void DraftBudget::AddStep() { balance_ = std::min(most_, balance_ + kStepShare); }

void DraftBudget::Settle(double cost, double num_saved) {
  balance_ = std::clamp(balance_ + num_saved - cost, kLeastBalance, most_);
  recent_ += kRecent * (num_saved - cost - recent_);
}

}  // namespace llmi

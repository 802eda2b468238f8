#include "speculative/length.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace llmi {
namespace {

constexpr double kForget = 0.9;
constexpr double kFade = 0.985;
// The expected rate has the weight of kPriorWeight drafts, and of kStatedWeight more for each unit of its distance from one half. A larger
// weight would keep the rate of a drafter that never hits so high that drafting seems to pay.
constexpr double kStatedWeight = 10.0;
constexpr double kPriorWeight = 1.0;
constexpr double kHistoryWeight = 3.0;  // the most drafts that a drafter's history with other sequences weighs
constexpr double kMargin = 1.01;
constexpr double kPriceFade = 0.999;  // a drafter that is too slow is tried about every 200 steps

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

void Price::Learn(double seen) { seconds_ = seconds_ == 0 ? seen : 0.8 * seconds_ + 0.2 * std::min(seen, 2 * seconds_); }

void Price::Rest() { seconds_ *= kPriceFade; }

CostCurve::CostCurve(std::vector<Point> points) : points_(std::move(points)) {
  for (size_t i = 1; i < points_.size(); ++i) points_[i].seconds = std::max(points_[i].seconds, points_[i - 1].seconds);
}

double CostCurve::Seconds(int64_t num_rows) const {
  if (points_.empty()) return 0;
  if (points_.size() == 1 || num_rows <= points_.front().num_rows) return points_.front().seconds;
  size_t right = 1;
  while (right + 1 < points_.size() && points_[right].num_rows < num_rows) ++right;
  const Point& a = points_[right - 1];
  const Point& b = points_[right];
  const double slope = (b.seconds - a.seconds) / static_cast<double>(b.num_rows - a.num_rows);
  return a.seconds + slope * static_cast<double>(num_rows - a.num_rows);
}

int64_t ChooseLength(const std::array<double, kMaxDraftDepth>& rates, const CostCurve& costs, const LengthQuestion& question) {
  const double plain = costs.Seconds(question.num_rows);
  double best_value = plain > 0 ? kMargin * question.expected_tokens / plain : 0;
  int64_t best = 0;
  double gain = 0;
  double saved = 0;
  double all_accepted = 1;
  for (int64_t length = 1; length <= std::min(question.max_length, kMaxDraftDepth); ++length) {
    all_accepted *= rates[static_cast<size_t>(length - 1)];
    gain += all_accepted;
    const double seconds =
        question.drafted_ratio * costs.Seconds(question.num_rows + length) + question.draft_seconds_per_token * static_cast<double>(length);
    const double value = seconds > 0 ? (question.expected_tokens + gain) / seconds : 0;
    if (value <= best_value) continue;
    best_value = value;
    best = length;
    // The sequence draws one token in a plain step, and 1 + gain tokens in a step with a draft.
    saved = static_cast<double>(question.remaining_tokens) * (plain - seconds / (1 + gain));
  }
  return question.start_seconds > 0 && saved <= question.start_seconds ? 0 : best;
}

}  // namespace llmi

#include "engine/drafting/head_worth.h"

#include <algorithm>

#include "speculative/node_choice.h"

namespace llmi {
namespace {

constexpr double kMargin = 1.01;
constexpr int64_t kMostRows = 32;     // of steps that are measured
constexpr double kShareWeight = 0.2;  // of a new measurement
constexpr double kShareFade = 0.002;  // at each step without one: a busy moment must not end drafting for good

}  // namespace

class SampleWorth : public DraftWorth {
 public:
  SampleWorth(HeadWorth& worth, Sample& sample) : worth_(worth), sample_(sample) {}
  bool RunsHead(int64_t max_nodes, const Draft& others) override { return worth_.RunsHead(sample_, max_nodes, others); }
  bool GoesOn(std::span<const NodeKind> path) override { return worth_.GoesOn(sample_, path); }

 private:
  HeadWorth& worth_;
  Sample& sample_;
};

std::unique_ptr<DraftWorth> HeadWorth::For(Sample& sample) { return std::make_unique<SampleWorth>(*this, sample); }

HeadWorth::HeadWorth(StepCosts& costs, DrafterHistories& histories, EagleRunner* head)
    : costs_(costs), histories_(histories), head_(head), share_(head == nullptr ? 0 : head->Share()) {}

void HeadWorth::LearnStep(int64_t num_rows, double seconds) {
  if (num_rows <= kMostRows) row_seconds_.Learn(seconds / costs_.Recorded().Seconds(num_rows));
}

void HeadWorth::LearnHead() {
  if (head_ == nullptr) return;
  const HeadWork work = head_->TakeWork();
  if (work.rows.empty()) {
    share_ += kShareFade * (head_->Share() - share_);
    return;
  }
  double of_steps = 0;
  for (const int64_t rows : work.rows) of_steps += costs_.Recorded().Seconds(rows);
  if (row_seconds_.seconds() <= 0) return;
  const double seen = work.seconds / (of_steps * row_seconds_.seconds());
  share_ += kShareWeight * (std::min(seen, 2 * share_) - share_);
}

double HeadWorth::Step::RowCost(int64_t num_more) const {
  const double plain = costs->Seconds(num_rows);
  return plain <= 0 ? 0 : tokens * (costs->Seconds(num_rows + num_more + 1) - costs->Seconds(num_rows + num_more)) / plain;
}

// The drafter's rows of all sequences of the step run together.
HeadWorth::Step HeadWorth::StepOf(const Sample& sample) const {
  if (sample.judges_drafts()) return {1, 1, &costs_.Recorded(), head_->Share()};
  const CostCurve& costs = costs_.CurveSoFar();
  const auto num_sequences = std::max<int64_t>(1, static_cast<int64_t>(plan_.expected_tokens));
  const double together = costs.Seconds(std::min(num_sequences, plan_.num_rows)) / costs.Seconds(plan_.num_rows);
  return {plan_.expected_tokens, plan_.num_rows, &costs, share_ * together};
}

// Judged drafts are of one drafter alone, since their tokens are drawn; else the head's draft joins the others'.
bool HeadWorth::RunsHead(Sample& sample, int64_t max_nodes, const Draft& others) {
  LengthRecord& record = *sample.drafting.lengths();
  record.head_cost = 0;
  if (head_ == nullptr) return true;  // which fails by name
  const Step step = StepOf(sample);
  const LengthQuestion question = {step.tokens, step.num_rows, 0, max_nodes / sample.num_sequences()};
  const NodeChoice chosen = ChooseNodes(others, record.rates, *step.costs, question);
  const bool joins = !sample.judges_drafts();
  const int64_t num_others = joins ? static_cast<int64_t>(chosen.nodes.size()) : 0;
  const double cost = step.head + step.RowCost(num_others) + (joins ? chosen.cost : 0);
  const double gain = joins ? chosen.gain + chosen.risk * record.head.first() : record.head.first();
  const double risk = (joins ? chosen.risk : 1) * (1 - record.head.first());
  const double without = (step.tokens + chosen.gain) / (step.tokens + chosen.cost);
  const bool pays = (step.tokens + gain) / (step.tokens + cost) > kMargin * without;
  if (question.max_length <= num_others || !pays || !histories_.BudgetOf(sample).Allows(cost, risk)) {
    record.head.Rest();
    return false;
  }
  record.head_cost = step.head;
  return true;
}

bool HeadWorth::GoesOn(Sample& sample, std::span<const NodeKind> path) {
  LengthRecord& record = *sample.drafting.lengths();
  double reach = 1;
  double gain = 0;
  double rate = 0;
  for (const NodeKind& kind : path) {
    rate = record.rates.Rate(kind);
    reach *= rate;
    gain += reach;
  }
  const bool is_first = path.size() == 1;
  record.head.Learn(is_first, rate);
  if (!sample.judges_drafts()) histories_.Of(sample).head[sample.request().params.greedy()].Learn(is_first, rate);
  const Step step = StepOf(sample);
  double spent = record.head_cost;
  for (size_t i = 0; i < path.size(); ++i) spent += step.RowCost(static_cast<int64_t>(i));
  const double speed_up = std::max(1.0, (step.tokens + gain) / (step.tokens + spent));
  const double cost = step.head + step.RowCost(static_cast<int64_t>(path.size()));
  if (reach * record.head.next() <= kMargin * speed_up * cost) return false;
  record.head_cost += step.head;
  return true;
}

}  // namespace llmi

#include "engine/drafting/node_lengths.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "speculative/draft.h"
#include "speculative/verify.h"

namespace llmi {
namespace {

// A draft does not make a step faster, and a busy moment must not end drafting.
constexpr double kMostRatio = 1.25;
constexpr double kManyTokens = 4;  // expected tokens of the step
constexpr int64_t kPatience = 8;   // steps
constexpr int64_t kRest = 4;
constexpr int64_t kMaxAutoLength = 16;

bool IsAuto(const SpeculationConfig& speculation) { return speculation.num_tokens < 0 && speculation.length_policy == nullptr; }

}  // namespace

bool NodeLengths::Picks(const SpeculationConfig& speculation) { return IsAuto(speculation) && speculation.drafter->traits().tells_kinds; }

int64_t NodeLengths::Limit(const Sample& sample, int64_t room) {
  const SpeculationConfig& speculation = *sample.request().speculation;
  const int64_t wanted = speculation.num_tokens < 0 ? kMaxAutoLength : speculation.num_tokens;
  const bool whole = speculation.verification == VerificationKind::kJudge;
  return std::min(
      {wanted, sample.judges_drafts() ? kMaxDraftNodes : room / sample.num_sequences(), whole ? kMaxJudgedNodes : kMaxDraftNodes});
}

void NodeLengths::Begin(Sample& sample) {
  const Request& request = sample.request();
  const SpeculationConfig& speculation = *request.speculation;
  if (sample.drafting.lengths() != nullptr || (speculation.length_policy == nullptr && !IsAuto(speculation))) return;
  const bool greedy = request.params.greedy();
  auto record = std::make_unique<LengthRecord>();
  const DrafterHistory own(*speculation.drafter);
  // If tokens depend on draft lengths, what other sequences have seen must not influence them.
  const DrafterHistory& known = sample.judges_drafts() ? own : histories_.Of(sample);
  record->rates = known.rates[greedy].AsPrior();
  record->by_depth = known.by_depth[greedy].AsPrior();
  record->head = known.head[greedy];
  record->budget = own.budget[greedy];
  record->worth = worth_.For(sample);
  sample.drafting.BeginLengths(std::move(record));
}

bool NodeLengths::Looks(Sample& sample, const StepPlan& plan) {
  LengthRecord& record = *sample.drafting.lengths();
  if (sample.judges_drafts() || plan.expected_tokens < kManyTokens || record.left_out < kPatience) return true;
  if (++record.left_out % kRest == 0) return true;
  histories_.BudgetOf(sample).AddStep();
  return false;
}

LengthQuestion NodeLengths::QuestionOf(const Sample& sample, const StepPlan& plan, int64_t max_length) const {
  if (sample.judges_drafts()) return {.expected_tokens = 1, .num_rows = 1, .max_length = max_length};
  return {.expected_tokens = plan.expected_tokens,
          .num_rows = plan.num_rows,
          .max_length = max_length,
          .drafted_ratio = std::clamp(costs_.drafted_ratio(), 1.0, kMostRatio)};
}

int64_t NodeLengths::Choose(Sample& sample, int64_t limit, StepPlan* plan) {
  const SpeculationConfig& speculation = *sample.request().speculation;
  int64_t length = limit;
  if (speculation.length_policy != nullptr) {
    const auto rates = sample.drafting.lengths()->by_depth.Rates();
    length = std::clamp<int64_t>(speculation.length_policy->Choose(rates, costs_.SecondsByRows(), scheduler_.num_running()), 0, limit);
    if (length == 0) sample.drafting.lengths()->by_depth.Rest();
  } else if (speculation.num_tokens < 0) {
    length = ChooseByNode(sample, limit, plan);
  }
  plan->num_rows += length * sample.num_sequences();
  return length;
}

int64_t NodeLengths::ChooseByNode(Sample& sample, int64_t limit, StepPlan* plan) {
  LengthRecord& record = *sample.drafting.lengths();
  LengthQuestion question = QuestionOf(sample, *plan, limit);
  const Draft chain = {.token_ids = std::vector<int32_t>(static_cast<size_t>(limit)), .parents = {}};
  NodeChoice choice;
  if (sample.judges_drafts()) {
    // A tree of fixed shape is proposed whole or not at all.
    const NodeChoice some = ChooseNodes(chain, record.rates, costs_.Recorded(), question);
    if (!some.nodes.empty()) choice = AllNodes(chain, record.rates, costs_.Recorded(), question);
  } else {
    const DrafterHistory& history = histories_.Of(sample);
    // A step takes longer than its forward alone. A drafter's seconds are divided by the same ratio, so that they compare with the curve.
    question.draft_seconds_per_token = history.per_token.seconds() / costs_.decode_ratio();
    if (!sample.drafting.was_asked()) {
      question.start_seconds = history.per_start_token.seconds() * static_cast<double>(sample.tokens.size()) / costs_.decode_ratio();
      question.remaining_tokens = sample.scheduled.max_new_tokens;
    }
    choice = ChooseNodes(chain, record.rates, costs_.Curve(), question);
  }
  if (choice.nodes.empty()) record.rates.Rest({});
  plan->expected_tokens += choice.gain;
  return static_cast<int64_t>(choice.nodes.size());
}

void NodeLengths::Cut(Sample& sample, Draft* draft, int64_t limit, StepPlan* plan) {
  LengthRecord& record = *sample.drafting.lengths();
  DraftBudget& budget = histories_.BudgetOf(sample);
  budget.AddStep();
  const LengthQuestion question = QuestionOf(sample, *plan, limit / sample.num_sequences());
  const CostCurve& costs = sample.judges_drafts() ? costs_.Recorded() : costs_.CurveSoFar();
  NodeChoice choice =
      draft->laws.empty() ? ChooseNodes(*draft, record.rates, costs, question) : AllNodes(*draft, record.rates, costs, question);
  if (draft->laws.empty() && !budget.Allows(choice.cost, choice.risk)) choice = {};
  size_t next = 0;
  for (int32_t node = 0; node < draft->size(); ++node) {
    if (next < choice.nodes.size() && choice.nodes[next] == node) {
      ++next;
    } else if (draft->parent(node) < 0) {
      record.rates.Rest(draft->kind(node));
    }
  }
  *draft = PickNodes(*draft, choice.nodes);
  record.left_out = draft->size() == 0 ? record.left_out + 1 : 0;
  record.cost = choice.cost + std::exchange(record.head_cost, 0);
  if (draft->size() == 0) budget.Settle(std::exchange(record.cost, 0), 0);
  plan->num_rows += draft->size() * sample.num_sequences();
  plan->expected_tokens += choice.gain;
}

void NodeLengths::Learn(Sample& sample, int64_t depth) {
  LengthRecord* record = sample.drafting.lengths();
  if (record == nullptr) return;
  const Draft& draft = sample.walk.draft();
  const bool greedy = sample.request().params.greedy();
  DrafterHistory* shared = sample.judges_drafts() ? nullptr : &histories_.Of(sample);
  record->by_depth.Add(depth, sample.walk.num_accepted());
  if (shared != nullptr) shared->by_depth[greedy].Add(depth, sample.walk.num_accepted());
  histories_.BudgetOf(sample).Settle(std::exchange(record->cost, 0), static_cast<double>(sample.walk.num_accepted()));
  std::vector<bool> on_path(static_cast<size_t>(draft.size()));
  for (int32_t node = sample.walk.drawn_at(); node >= 0; node = draft.parent(node)) on_path[static_cast<size_t>(node)] = true;
  for (int64_t node = 0; node < draft.size(); ++node) {
    const int32_t parent = draft.parent(node);
    if (parent >= 0 && !on_path[static_cast<size_t>(parent)]) continue;  // the walk did not come to it
    record->rates.Add(draft.kind(node), on_path[static_cast<size_t>(node)]);
    if (shared != nullptr) shared->rates[greedy].Add(draft.kind(node), on_path[static_cast<size_t>(node)]);
  }
}

}  // namespace llmi

#include "engine/drafting/node_lengths.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "speculative/node_choice.h"

namespace llmi {
namespace {

// A draft does not make a step faster, and a busy moment must not end drafting.
constexpr double kMostRatio = 1.25;
constexpr double kLargeBatch = 4;  // expected tokens of the step
constexpr int64_t kPatience = 8;   // steps
constexpr int64_t kRest = 4;

}  // namespace

bool NodeLengths::Serves(const SpeculationConfig& speculation) {
  return speculation.num_tokens < 0 && speculation.length_policy == nullptr && speculation.drafter->tells_kinds();
}

void NodeLengths::Begin(Sample& sample) {
  const Request& request = sample.request();
  const bool greedy = request.params.greedy();
  sample.drafting.nodes() = std::make_unique<NodeRecord>();
  const Drafter& drafter = *request.speculation->drafter;
  sample.drafting.nodes()->rates = sample.judges_drafts() ? NodeRates(drafter, greedy) : histories_.Of(sample).rates[greedy].AsPrior();
  sample.drafting.nodes()->budget = DraftBudget(drafter.needs_head());
  sample.drafting.nodes()->head = sample.judges_drafts() ? HeadRates(greedy) : histories_.Of(sample).head[greedy];
}

bool NodeLengths::Looks(Sample& sample, const StepPlan& plan) {
  NodeRecord& record = *sample.drafting.nodes();
  if (sample.judges_drafts() || plan.expected_tokens < kLargeBatch || record.left_out < kPatience) return true;
  if (++record.left_out % kRest == 0) return true;
  histories_.BudgetOf(sample).AddStep();
  return false;
}

void NodeLengths::Cut(Sample& sample, Draft* draft, int64_t limit, StepPlan* plan) {
  NodeRecord& record = *sample.drafting.nodes();
  DraftBudget& budget = histories_.BudgetOf(sample);
  budget.AddStep();
  const bool own = sample.judges_drafts();
  LengthQuestion question;
  question.expected_tokens = own ? 1 : plan->expected_tokens;
  question.num_rows = own ? 1 : plan->num_rows;
  question.max_length = limit / sample.num_sequences();
  if (!own) question.drafted_ratio = std::clamp(costs_.drafted_ratio(), 1.0, kMostRatio);
  const CostCurve& costs = own ? StepCosts::Recorded(context_) : costs_.CurveSoFar();
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

void NodeLengths::Learn(Sample& sample) {
  const Draft& draft = sample.walk.draft();
  NodeRecord& record = *sample.drafting.nodes();
  const Request& request = sample.request();
  histories_.BudgetOf(sample).Settle(record.cost, static_cast<double>(sample.walk.num_accepted()));
  std::vector<bool> on_path(static_cast<size_t>(draft.size()));
  for (int32_t node = sample.walk.drawn_at(); node >= 0; node = draft.parent(node)) on_path[static_cast<size_t>(node)] = true;
  NodeRates* shared = sample.judges_drafts() ? nullptr : &histories_.Of(sample).rates[request.params.greedy()];
  for (int64_t node = 0; node < draft.size(); ++node) {
    const int32_t parent = draft.parent(node);
    if (parent >= 0 && !on_path[static_cast<size_t>(parent)]) continue;  // the walk did not come to it
    record.rates.Add(draft.kind(node), on_path[static_cast<size_t>(node)]);
    if (shared != nullptr) shared->Add(draft.kind(node), on_path[static_cast<size_t>(node)]);
  }
}

}  // namespace llmi

// Parts of speculation, for the tests.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <utility>

#include "bindings/bind_testing.h"
#include "bindings/keywords.h"
#include "engine/verification.h"
#include "kernels/dispatch/device.h"
#include "speculative/acceptance_record.h"
#include "speculative/cost_curve.h"
#include "speculative/likeliest.h"
#include "speculative/node_choice.h"
#include "speculative/prompt_lookup.h"
#include "speculative/verify.h"

namespace py = pybind11;

namespace llmi {
namespace {

// Instead of drawing, keeps the law that would be drawn from.
struct HandedLaw {
  std::vector<double> law;
  bool after_rejection = false;

  int32_t Take(std::span<const double> probs, bool rejected) {
    law.assign(probs.begin(), probs.end());
    after_rejection = rejected;
    return -1;
  }
};

// Uniforms that the test has chosen.
class ScriptedNoise : public VerifyNoise {
 public:
  explicit ScriptedNoise(std::vector<double> uniforms) : uniforms_(std::move(uniforms)) {}
  double Uniform(int32_t node) override { return uniforms_.at(static_cast<size_t>(node)); }
  int32_t Draw(std::span<const double> probs, bool rejected) override { return handed.Take(probs, rejected); }
  HandedLaw handed;

 private:
  std::vector<double> uniforms_;
};

class ScriptedRows : public DraftRows {
 public:
  ScriptedRows(Draft draft, std::vector<std::vector<double>> targets, std::vector<double> uniforms)
      : draft_(std::move(draft)), targets_(std::move(targets)), uniforms_(std::move(uniforms)) {}
  const Draft& draft() const override { return draft_; }
  std::span<const int32_t> TokenIds() const override { return {}; }
  std::span<const double> Target(int32_t node) override { return targets_.at(static_cast<size_t>(node + 1)); }
  std::span<const float> Logits(int32_t /*node*/) override { return {}; }
  int32_t TargetToken(int32_t /*node*/) override { return -1; }
  double Uniform(int32_t node) override { return uniforms_.at(static_cast<size_t>(node)); }
  double Coin(int32_t /*node*/, int32_t /*lane*/) override { return 0; }
  int32_t Draw(std::span<const double> probs, int32_t /*node*/, bool rejected) override { return handed.Take(probs, rejected); }
  HandedLaw handed;

 private:
  Draft draft_;
  std::vector<std::vector<double>> targets_;
  std::vector<double> uniforms_;
};

Draft LookUp(int64_t min_ngram, int64_t max_ngram, const std::vector<int32_t>& token_ids, int64_t num_tokens) {
  PromptLookup lookup(min_ngram, max_ngram);
  NgramIndex index = lookup.NewIndex();
  Draft draft;
  for (size_t size = 1; size <= token_ids.size(); ++size) {
    Seat seat;
    seat.text.token_ids = std::span(token_ids).first(size);
    seat.budget.max_nodes = num_tokens;
    seat.state = &index;
    lookup.Propose({&seat, 1});
    draft = std::move(seat.draft);
  }
  return draft;
}

using SiblingLists = std::vector<std::pair<std::vector<int32_t>, std::vector<std::vector<float>>>>;  // token ids, and laws or none

Draft DraftOfSiblings(const SiblingLists::value_type& siblings) {
  return {siblings.first, std::vector<int32_t>(siblings.first.size(), -1), siblings.second};
}

// A row's place in its request. By name: prompt_len, sample_index, round.
struct RowPlace {
  int64_t prompt_len, sample_index;
  uint32_t round;

  explicit RowPlace(const py::kwargs& given) {
    Keywords keywords(given, "verify");
    prompt_len = keywords.Take<int64_t>("prompt_len");
    sample_index = keywords.Take<int64_t>("sample_index");
    round = keywords.Take<uint32_t>("round");
    keywords.CheckAllKnown();
  }
};

std::pair<int32_t, int32_t> VerifyOnHost(const SamplingParams& params, const std::vector<int32_t>& tokens, const FloatArray& logits,
                                         const SiblingLists::value_type& siblings, const py::kwargs& given) {
  const RowPlace place(given);
  const KernelContext context = TestContext("", 1);
  std::vector<float> law(logits.data(), logits.data() + logits.size());
  Validate(params, logits.size());
  ProcessLogits(context, params, {tokens, place.prompt_len}, nullptr, law.data(), logits.size());
  const NoiseKey key = {params.seed, static_cast<int64_t>(tokens.size()), place.sample_index, 0, place.round};
  const RowVerdict verdict = VerifyLaw(context, params, key, law, DraftOfSiblings(siblings), -1, AcceptanceRule());
  return {verdict.token, verdict.child};
}

std::vector<std::pair<int32_t, int32_t>> VerifyOnDevice(const std::string& table, const std::vector<SamplingParams>& params,
                                                        const std::vector<std::vector<int32_t>>& tokens, const FloatArray& logits,
                                                        const SiblingLists& siblings, const py::kwargs& given) {
  const RowPlace place(given);
  const KernelContext context = TestContext(table, 1);
  PlacedFloats placed = Place(context, logits);
  std::vector<Draft> drafts;
  for (const auto& list : siblings) drafts.push_back(DraftOfSiblings(list));
  DrawList draws;
  for (size_t i = 0; i < params.size(); ++i) {
    Validate(params[i], logits.shape(1));
    draws.Add(params[i], {tokens[i], place.prompt_len}, place.sample_index, static_cast<int64_t>(i), logits.shape(1));
    const std::vector<int32_t> children = drafts[i].Children(-1);
    if (children.empty()) continue;
    AddVerification({params[i].seed, static_cast<int64_t>(tokens[i].size()), place.sample_index, 0, place.round}, drafts[i], children,
                    &draws);
  }
  const DrawnRows drawn = context.device->TakeDrawn(context.device->Draw(draws.batch(), placed.data(), logits.shape(1)));
  std::vector<std::pair<int32_t, int32_t>> verdicts;
  for (size_t i = 0; i < drawn.tokens.size(); ++i) verdicts.emplace_back(drawn.tokens[i], drawn.accepted[i]);
  return verdicts;
}

// A drafter of which only the expected rates of kinds are asked.
class RatesAlone : public Drafter {
 public:
  explicit RatesAlone(std::vector<double> rates) : Drafter({.name = "rates"}), rates_(std::move(rates)) {}
  void Propose(std::span<Seat> /*seats*/) override {}
  double expected_rate(int32_t kind, bool /*greedy*/) const override {
    return static_cast<size_t>(kind) < rates_.size() ? rates_[static_cast<size_t>(kind)] : 0;
  }

 private:
  const std::vector<double> rates_;
};

// The nodes that are chosen of a draft whose nodes have these kinds. expected: the rates of kinds 0, 1, ... costs: (rows, seconds). seen:
// (kind, accepted) of nodes before; then num_rests nodes of kind 0 were left out. By name: num_rests and the fields of LengthQuestion.
// Returns (nodes, cost, gain, risk).
py::tuple ChosenNodes(const std::vector<int32_t>& parents, const std::vector<std::pair<int16_t, int16_t>>& kinds,
                      const std::vector<double>& expected, const std::vector<std::pair<int64_t, double>>& costs,
                      const std::vector<std::pair<int16_t, bool>>& seen, const py::kwargs& given) {
  Keywords keywords(given, "choose_nodes");
  LengthQuestion question;
  question.num_rows = keywords.Take<int64_t>("num_rows");
  question.expected_tokens = keywords.Take<double>("expected_tokens");
  question.max_length = keywords.Take<int64_t>("max_length");
  keywords.Read("draft_seconds_per_token", &question.draft_seconds_per_token);
  keywords.Read("drafted_ratio", &question.drafted_ratio);
  keywords.Read("start_seconds", &question.start_seconds);
  keywords.Read("remaining_tokens", &question.remaining_tokens);
  int64_t num_rests = 0;
  keywords.Read("num_rests", &num_rests);
  keywords.CheckAllKnown();
  Draft draft;
  draft.token_ids.resize(parents.size());
  draft.parents = parents;
  for (const auto& [first, second] : kinds) draft.kinds.push_back({first, second});
  NodeRates rates(RatesAlone(expected), true);
  for (const auto& [kind, accepted] : seen) rates.Add({kind, -1}, accepted);
  for (int64_t i = 0; i < num_rests; ++i) rates.Rest({});
  std::vector<CostCurve::Point> points;
  for (const auto& [rows, seconds] : costs) points.push_back({rows, seconds});
  const NodeChoice choice = ChooseNodes(draft, rates, CostCurve(std::move(points)), question);
  return py::make_tuple(choice.nodes, choice.cost, choice.gain, choice.risk);
}

// Nodes that are picked by kind, and what drafters learn from.
void RegisterNodes(py::module_& module) {
  module.def("choose_nodes", &ChosenNodes, py::arg("parents"), py::arg("kinds"), py::arg("expected"), py::arg("costs"), py::arg("seen"));
  // The balance after steps, and drafts of (cost, tokens accepted); and whether a draft may then cost 0.1 for nothing.
  module.def(
      "draft_budget",
      [](int64_t num_steps, const std::vector<std::pair<double, double>>& drafts, bool has_head) {
        DraftBudget budget(has_head);
        for (int64_t i = 0; i < num_steps; ++i) budget.AddStep();
        for (const auto& [cost, saved] : drafts) budget.Settle(cost, saved);
        return py::make_tuple(budget.balance(), budget.Allows(0.1, 1.0));
      },
      py::arg("num_steps"), py::arg("drafts"), py::arg("has_head") = false);
  module.def("likeliest_tokens", [](const FloatArray& logits, int64_t count) {
    return LikeliestTokens({logits.data(), static_cast<size_t>(logits.size())}, count);
  });
}

}  // namespace

void RegisterTestingSpeculative(py::module_& module) {
  // The tokens that PromptLookup proposes after token_ids, which it is given one at a time.
  module.def("prompt_lookup", [](int64_t min_ngram, int64_t max_ngram, const std::vector<int32_t>& token_ids, int64_t num_tokens) {
    return LookUp(min_ngram, max_ngram, token_ids, num_tokens).token_ids;
  });
  // The kinds of these tokens.
  module.def("lookup_kinds", [](int64_t min_ngram, int64_t max_ngram, const std::vector<int32_t>& token_ids, int64_t num_tokens) {
    std::vector<int32_t> kinds;
    for (const NodeKind& kind : LookUp(min_ngram, max_ngram, token_ids, num_tokens).kinds) kinds.push_back(kind.first);
    return kinds;
  });
  // (token ids, parents) of several drafts as one tree; empty parents: a chain.
  module.def("merge_drafts", [](const std::vector<std::pair<std::vector<int32_t>, std::vector<int32_t>>>& drafts, int64_t max_nodes) {
    std::vector<Draft> list;
    for (const auto& [token_ids, parents] : drafts) list.push_back({token_ids, parents, {}});
    const Draft merged = MergeDrafts(list, max_nodes);
    return py::make_tuple(merged.token_ids, merged.parents);
  });
  // One row of the shipped verifier: (accepted child or -1, the law that is drawn from if none, after a rejection).
  module.def("verify_row",
             [](const std::vector<int32_t>& token_ids, const std::vector<int32_t>& parents, const std::vector<std::vector<float>>& laws,
                int32_t node, const std::vector<double>& target, const std::vector<double>& uniforms) {
               ScriptedNoise noise(uniforms);
               const RowVerdict verdict = VerifyRow({token_ids, parents, laws}, node, target, AcceptanceRule(), noise);
               return py::make_tuple(verdict.child, noise.handed.law, noise.handed.after_rejection);
             });
  module.def("sum_of_law", [](const std::vector<double>& weights) { return SumOfLaw(weights); });
  // The verdict (token, accepted sibling or -1) on one row by the host, and on several rows by a device.
  module.def("verify_on_host", &VerifyOnHost);
  module.def("verify_on_device", &VerifyOnDevice);
  // The shipped block verifier over one chain: (number accepted, law that the next token is drawn from, after a rejection).
  // targets [1 + nodes, vocab_size].
  module.def("verify_block", [](const std::vector<int32_t>& token_ids, const std::vector<std::vector<float>>& laws,
                                const std::vector<std::vector<double>>& targets, const std::vector<double>& uniforms) {
    ScriptedRows rows({token_ids, {}, laws}, targets, uniforms);
    const DraftVerdict verdict = BlockVerification().Judge(rows);
    return py::make_tuple(verdict.path.size(), rows.handed.law, rows.handed.after_rejection);
  });
  module.def("accept_probability", [](int32_t token, const std::vector<double>& target, const std::vector<float>& draft) {
    return AcceptanceRule().AcceptProbability(token, target, draft);
  });
  // The price that is learned from these seconds. None: a step in which nothing was seen.
  module.def("price", [](const std::vector<std::optional<double>>& seen) {
    Price price;
    for (const std::optional<double>& seconds : seen) seconds ? price.Learn(*seconds) : price.Rest();
    return price.seconds();
  });
  RegisterNodes(module);
}

}  // namespace llmi

// Parts of speculation, driven by the tests.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <utility>

#include "bindings/bind_testing.h"
#include "speculative/length.h"
#include "speculative/prompt_lookup.h"

namespace py = pybind11;

namespace llmi {

void RegisterTestingSpeculative(py::module_& module) {
  // What PromptLookup proposes after token_ids, fed one token at a time.
  module.def("prompt_lookup", [](int64_t min_ngram, int64_t max_ngram, const std::vector<int32_t>& token_ids, int64_t num_tokens) {
    PromptLookup lookup(min_ngram, max_ngram);
    const std::unique_ptr<DrafterState> state = lookup.NewState(0, 0);
    DraftContext context;
    for (size_t size = 1; size <= token_ids.size(); ++size) {
      context = DraftContext{};
      context.token_ids = std::span(token_ids).first(size);
      context.max_nodes = num_tokens;
      context.state = state.get();
      DraftContext* pointer = &context;
      lookup.Propose({&pointer, 1});
    }
    return context.draft.token_ids;
  });
  // The length chosen after num_drafts drafts of 8 tokens, of which num_accepted each were accepted.
  module.def("choose_length", [](int64_t num_drafts, int64_t num_accepted, const std::vector<std::pair<int64_t, double>>& costs,
                                 double expected_tokens, int64_t num_rows, double draft_seconds_per_token, int64_t max_length) {
    AcceptanceRecord record;
    for (int64_t i = 0; i < num_drafts; ++i) record.Add(10, num_accepted);
    std::vector<CostCurve::Point> points;
    for (const auto& [rows, seconds] : costs) points.push_back({rows, seconds});
    return ChooseLength(record.Rates(), CostCurve(std::move(points)), {expected_tokens, num_rows, draft_seconds_per_token, max_length});
  });
}

}  // namespace llmi

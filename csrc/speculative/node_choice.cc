#include "speculative/node_choice.h"

#include <algorithm>
#include <numeric>

namespace llmi {
namespace {

constexpr double kMargin = 1.01;
constexpr double kMostOfSiblings = 0.98;  // only one of them can be accepted

// The probability of each node that its whole path is accepted.
std::vector<double> PathRates(const Draft& draft, const NodeRates& rates) {
  const auto size = static_cast<size_t>(draft.size());
  std::vector<double> own(size);
  std::vector<double> of_children(size + 1);  // [parent + 1]
  for (size_t i = 0; i < size; ++i) {
    own[i] = rates.Rate(draft.kind(static_cast<int64_t>(i)));
    of_children[static_cast<size_t>(draft.parent(static_cast<int64_t>(i)) + 1)] += own[i];
  }
  for (size_t i = 0; i < size; ++i) {
    const auto parent = static_cast<size_t>(draft.parent(static_cast<int64_t>(i)) + 1);
    if (of_children[parent] > kMostOfSiblings) own[i] *= kMostOfSiblings / of_children[parent];
    if (parent > 0) own[i] *= own[parent - 1];
  }
  return own;
}

}  // namespace

NodeChoice ChooseNodes(const Draft& draft, const NodeRates& rates, const CostCurve& costs, const LengthQuestion& question) {
  const std::vector<double> reach = PathRates(draft, rates);
  std::vector<int32_t> order(reach.size());
  std::iota(order.begin(), order.end(), 0);
  // A child is never more likely than its parent, and comes after it.
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return reach[static_cast<size_t>(a)] > reach[static_cast<size_t>(b)]; });
  const double plain = costs.Seconds(question.num_rows);
  NodeChoice best;
  if (plain <= 0 || question.expected_tokens <= 0) return best;
  double best_value = kMargin * question.expected_tokens / plain;
  double gain = 0;
  double root = 0;
  double best_root = 0;
  size_t best_count = 0;
  double saved = 0;
  for (size_t count = 1; count <= std::min(order.size(), static_cast<size_t>(std::max<int64_t>(question.max_length, 0))); ++count) {
    const int32_t node = order[count - 1];
    gain += reach[static_cast<size_t>(node)];
    if (draft.parent(node) < 0) root += reach[static_cast<size_t>(node)];
    const double seconds = question.drafted_ratio * costs.Seconds(question.num_rows + static_cast<int64_t>(count)) +
                           question.draft_seconds_per_token * static_cast<double>(count);
    const double value = (question.expected_tokens + gain) / seconds;
    if (value <= best_value) continue;
    best_value = value;
    best_count = count;
    best_root = root;
    best.gain = gain;
    best.cost = question.expected_tokens * (seconds / plain - 1);
    // The sequence draws one token in a plain step, and 1 + gain tokens in a step with a draft.
    saved = static_cast<double>(question.remaining_tokens) * (plain - seconds / (1 + gain));
  }
  if (question.start_seconds > 0 && saved <= question.start_seconds) return {};
  best.nodes.assign(order.begin(), order.begin() + static_cast<int64_t>(best_count));
  std::sort(best.nodes.begin(), best.nodes.end());
  best.risk = 1 - best_root;
  return best;
}

NodeChoice AllNodes(const Draft& draft, const NodeRates& rates, const CostCurve& costs, const LengthQuestion& question) {
  const std::vector<double> reach = PathRates(draft, rates);
  NodeChoice all;
  all.nodes.resize(reach.size());
  std::iota(all.nodes.begin(), all.nodes.end(), 0);
  for (const int32_t node : all.nodes) {
    all.gain += reach[static_cast<size_t>(node)];
    if (draft.parent(node) < 0) all.risk -= reach[static_cast<size_t>(node)];
  }
  const double plain = costs.Seconds(question.num_rows);
  if (plain > 0)
    all.cost = question.expected_tokens * (question.drafted_ratio * costs.Seconds(question.num_rows + draft.size()) / plain - 1);
  return all;
}

}  // namespace llmi

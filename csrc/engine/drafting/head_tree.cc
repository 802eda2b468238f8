#include "engine/drafting/head_tree.h"

#include <algorithm>
#include <utility>

#include "sampling/edits.h"
#include "speculative/head_drafter.h"

namespace llmi {
namespace {

// Judged siblings are verified whether they are worth it or not, so a draft that is sized has none of them.
std::vector<TreeNode> NodesOf(const Seat& seat, std::span<const TreeNode> shape) {
  const bool is_chain = seat.wants.chain || (seat.budget.worth != nullptr && seat.wants.laws);
  std::vector<TreeNode> nodes = is_chain ? ChainOf(shape) : std::vector<TreeNode>(shape.begin(), shape.end());
  nodes.resize(static_cast<size_t>(std::min(static_cast<int64_t>(nodes.size()), seat.budget.max_nodes)));
  return nodes;
}

// The tokens behind a node, at most `count`.
DraftChoices ChooseBehind(const KernelContext& host, const HeadTree& tree, int32_t node, std::span<const int32_t> shortlist,
                          std::span<const float> logits, int64_t vocab_size, int64_t count) {
  DraftChoice choice(*tree.seat);
  choice.wants_probabilities = tree.seat->budget.worth != nullptr;  // who sizes the draft learns by kinds
  for (const int32_t place : tree.PathTo(node < 0 ? -1 : tree.places[static_cast<size_t>(node)])) {
    choice.token_ids.push_back(tree.seat->draft.token_ids[static_cast<size_t>(place)]);
  }
  return ChooseTokens(host, choice, shortlist, logits, vocab_size, count);
}

}  // namespace

HeadTree::HeadTree(Seat* its_seat, std::span<const TreeNode> shape, int64_t its_max_depth)
    : seat(its_seat), nodes(NodesOf(*its_seat, shape)), max_depth(its_max_depth), places(nodes.size(), -1) {}

int64_t HeadTree::NumChildren(int32_t node) const {
  return std::ranges::count_if(nodes, [&](const TreeNode& other) { return other.parent == node; });
}

std::vector<int32_t> HeadTree::PathTo(int32_t place) const {
  std::vector<int32_t> path;
  for (; place >= 0; place = parents[static_cast<size_t>(place)]) path.push_back(place);
  std::ranges::reverse(path);
  return path;
}

bool HeadTree::GoesOn(int32_t node) const {
  const int32_t place = places[static_cast<size_t>(node)];
  if (place < 0 || depths[static_cast<size_t>(place)] >= max_depth || NumChildren(node) == 0) return false;
  if (seat->budget.worth == nullptr) return true;
  std::vector<NodeKind> path;
  for (const int32_t at : PathTo(place)) {
    path.push_back({static_cast<int16_t>(seat->first_kind + seat->draft.kinds[static_cast<size_t>(at)].first), -1});
  }
  return seat->budget.worth->GoesOn(path);
}

void HeadTree::AddChildren(int32_t node, const DraftChoices& choices) {
  const int32_t parent = node < 0 ? -1 : places[static_cast<size_t>(node)];
  for (size_t i = 0; i < nodes.size(); ++i) {
    const auto rank = static_cast<size_t>(nodes[i].rank);
    if (nodes[i].parent != node || rank >= choices.token_ids.size()) continue;
    places[i] = static_cast<int32_t>(seat->draft.size());
    parents.push_back(parent);
    depths.push_back(parent < 0 ? 1 : depths[static_cast<size_t>(parent)] + 1);
    seat->draft.token_ids.push_back(choices.token_ids[rank]);
    if (!choices.probabilities.empty()) seat->draft.kinds.push_back(HeadDrafter::KindOf(choices.probabilities[rank]));
    if (!choices.laws.empty()) seat->draft.laws.push_back(choices.laws[rank]);
  }
}

void GrowTrees(const KernelContext& context, HeadLogits& source, std::span<const int32_t> shortlist, int64_t vocab_size,
               std::vector<HeadTree>* trees) {
  const KernelContext host = {context.table, context.pool, context.num_threads};
  std::vector<TreeFront> front;
  for (size_t tree = 0; tree < trees->size(); ++tree) front.push_back({tree, -1, 0});
  while (!front.empty()) {
    const std::vector<std::span<const float>> logits = source.Behind(*trees, front);
    DraftChoices choices;
    for (size_t f = 0; f < front.size(); ++f) {
      HeadTree& tree = (*trees)[front[f].tree];
      const auto is_shared = [&](size_t other) { return front[other].tree == front[f].tree && logits[other].data() == logits[f].data(); };
      if (f == 0 || !is_shared(f - 1) || EditsByTokens(*tree.seat->sampling.params)) {
        int64_t count = 0;
        for (size_t other = f; other < front.size() && is_shared(other); ++other) {
          count = std::max(count, tree.NumChildren(front[other].node));
        }
        choices = ChooseBehind(host, tree, front[f].node, shortlist, logits[f], vocab_size, count);
      }
      tree.AddChildren(front[f].node, choices);
    }
    std::vector<TreeFront> next;
    for (size_t f = 0; f < front.size(); ++f) {
      const HeadTree& tree = (*trees)[front[f].tree];
      for (int32_t node = 0; node < static_cast<int32_t>(tree.nodes.size()); ++node) {
        if (tree.nodes[static_cast<size_t>(node)].parent == front[f].node && tree.GoesOn(node)) next.push_back({front[f].tree, node, f});
      }
    }
    front = std::move(next);
  }
  for (HeadTree& tree : *trees) {
    const bool is_chain = std::ranges::all_of(tree.nodes, [](const TreeNode& node) { return node.rank == 0; });
    if (!is_chain) tree.seat->draft.parents = std::move(tree.parents);
  }
}

}  // namespace llmi

#include "speculative/draft.h"

#include <algorithm>
#include <string>
#include <utility>

#include "core/errors.h"

namespace llmi {

std::vector<int32_t> Draft::Children(int32_t node) const {
  std::vector<int32_t> children;
  for (int64_t i = node + 1; i < size(); ++i) {
    if (parent(i) == node) children.push_back(static_cast<int32_t>(i));
    if (is_chain()) break;
  }
  return children;
}

int32_t Draft::Child(int32_t node, int32_t token_id) const {
  for (int64_t i = node + 1; i < size(); ++i) {
    if (parent(i) == node && token_ids[static_cast<size_t>(i)] == token_id) return static_cast<int32_t>(i);
    if (is_chain()) break;
  }
  return -1;
}

std::vector<int32_t> Draft::Depths() const {
  std::vector<int32_t> depths(token_ids.size());
  for (int64_t i = 0; i < size(); ++i) {
    depths[static_cast<size_t>(i)] = parent(i) < 0 ? 1 : depths[static_cast<size_t>(parent(i))] + 1;
  }
  return depths;
}

namespace {

// The draft's fault in words, or empty.
std::string Problem(const Draft& draft, int64_t vocab_size) {
  for (int32_t id : draft.token_ids) {
    if (id < 0 || id >= vocab_size) return "token id " + std::to_string(id) + " is outside [0, " + std::to_string(vocab_size) + ")";
  }
  if (draft.is_chain()) return "";
  if (draft.parents.size() != draft.token_ids.size()) {
    return std::to_string(draft.parents.size()) + " parents for " + std::to_string(draft.size()) + " tokens";
  }
  for (int64_t i = 0; i < draft.size(); ++i) {
    const int32_t parent = draft.parent(i);
    if (parent < -1 || parent >= i) {
      return "a broken tree: the parent of node " + std::to_string(i) + " is " + std::to_string(parent) +
             ", and must be -1 or an earlier node";
    }
    if (draft.Child(parent, draft.token_ids[static_cast<size_t>(i)]) != i) {
      return "token " + std::to_string(draft.token_ids[static_cast<size_t>(i)]) + " stands twice behind node " + std::to_string(parent) +
             ": merge equal siblings (TokenTree.from_paths does)";
    }
  }
  return "";
}

std::string LawFault(const Draft& draft, int64_t vocab_size) {
  if (draft.laws.empty()) return "";
  if (draft.laws.size() != draft.token_ids.size()) {
    return std::to_string(draft.laws.size()) + " rows of draft_probs for " + std::to_string(draft.size()) + " tokens";
  }
  for (size_t i = 0; i < draft.laws.size(); ++i) {
    const std::vector<float>& law = draft.laws[i];
    const std::string row = "row " + std::to_string(i) + " of draft_probs";
    if (static_cast<int64_t>(law.size()) != vocab_size) return row + " is not [" + std::to_string(vocab_size) + "]";
    double total = 0;
    for (float value : law) {
      if (!(value >= 0.0f)) return row + " holds NaN or a negative number";
      total += static_cast<double>(value);
    }
    if (!(total > 0.999 && total < 1.001)) return row + " sums to " + std::to_string(total) + ", not 1";
    if (!(law[static_cast<size_t>(draft.token_ids[i])] > 0.0f))
      return row + " gives its own token no probability: it cannot have been drawn from it";
  }
  return "";
}

void DropChainParents(Draft* draft) {
  for (int64_t i = 0; i < draft->size() && !draft->is_chain(); ++i) {
    if (draft->parent(i) != i - 1) return;
  }
  draft->parents.clear();
}

}  // namespace

void CheckDraft(Draft* draft, int64_t vocab_size, int64_t max_nodes) {
  std::string problem = Problem(*draft, vocab_size);
  if (draft->size() > max_nodes) {
    problem = std::to_string(draft->size()) + " tokens where at most " + std::to_string(max_nodes) +
              " are wanted (cut the draft to context.num_speculative_tokens)";
  }
  if (problem.empty()) problem = LawFault(*draft, vocab_size);
  if (!problem.empty()) throw Error(ErrorKind::kDraft, "the drafter's proposal is refused: " + problem, "drafter");
  DropChainParents(draft);
}

void CheckTree(Draft* draft, int64_t vocab_size) {
  const std::string problem = Problem(*draft, vocab_size);
  if (!problem.empty()) throw Error(ErrorKind::kInvalidArgument, problem, "tokens");
  DropChainParents(draft);
}

void CheckTokens(const std::vector<int32_t>& token_ids, int64_t vocab_size) {
  Draft chain = {token_ids, {}, {}};
  CheckTree(&chain, vocab_size);
}

Draft CutDepth(const Draft& draft, int64_t max_depth) {
  const std::vector<int32_t> depths = draft.Depths();
  if (std::all_of(depths.begin(), depths.end(), [&](int32_t depth) { return depth <= max_depth; })) return draft;
  std::vector<int32_t> keep;
  for (size_t i = 0; i < depths.size(); ++i) {
    if (depths[i] <= max_depth) keep.push_back(static_cast<int32_t>(i));
  }
  return PickNodes(draft, keep);
}

Draft FirstPath(const Draft& draft) {
  if (draft.is_chain()) return draft;
  std::vector<int32_t> path;
  for (int32_t node = 0; node < draft.size(); ++node) {
    if (draft.parent(node) == (path.empty() ? -1 : path.back())) path.push_back(node);
  }
  Draft chain = PickNodes(draft, path);
  chain.parents.clear();
  return chain;
}

Draft PickNodes(const Draft& draft, const std::vector<int32_t>& keep) {
  Draft picked;
  std::vector<int32_t> place(draft.token_ids.size(), -1);
  for (const int32_t node : keep) {
    const auto i = static_cast<size_t>(node);
    place[i] = static_cast<int32_t>(picked.size());
    picked.token_ids.push_back(draft.token_ids[i]);
    if (!draft.laws.empty()) picked.laws.push_back(draft.laws[i]);
    if (!draft.kinds.empty()) picked.kinds.push_back(draft.kinds[i]);
    if (draft.is_chain()) continue;
    picked.parents.push_back(draft.parents[i] < 0 ? -1 : place[static_cast<size_t>(draft.parents[i])]);
  }
  return picked;
}

Draft MergeDrafts(const std::vector<Draft>& drafts, int64_t max_nodes) {
  Draft merged;
  bool chain = true;
  const bool has_kinds = std::any_of(drafts.begin(), drafts.end(), [](const Draft& draft) { return !draft.kinds.empty(); });
  for (const Draft& draft : drafts) {
    std::vector<int32_t> place(draft.token_ids.size(), -1);
    for (int64_t i = 0; i < draft.size(); ++i) {
      const auto index = static_cast<size_t>(i);
      const int32_t parent = draft.parent(i) < 0 ? -1 : place[static_cast<size_t>(draft.parent(i))];
      if (draft.parent(i) >= 0 && parent < 0) continue;  // its parent found no room
      place[index] = [&] {
        for (size_t j = 0; j < merged.token_ids.size(); ++j) {
          if (merged.parents[j] == parent && merged.token_ids[j] == draft.token_ids[index]) return static_cast<int32_t>(j);
        }
        return -1;
      }();
      if (place[index] >= 0) {
        if (has_kinds) merged.kinds[static_cast<size_t>(place[index])].second = draft.kind(i).first;
        continue;
      }
      if (merged.size() == max_nodes) continue;
      place[index] = static_cast<int32_t>(merged.size());
      chain = chain && parent == static_cast<int32_t>(merged.size()) - 1;
      merged.token_ids.push_back(draft.token_ids[index]);
      merged.parents.push_back(parent);
      if (has_kinds) merged.kinds.push_back(draft.kind(i));
    }
  }
  if (chain) merged.parents.clear();
  return merged;
}

}  // namespace llmi

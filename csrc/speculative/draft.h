// What a drafter proposes: a tree of tokens behind the last committed one, or a chain.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace llmi {

struct Draft {
  std::vector<int32_t> token_ids;
  // parents[i] < i; -1 = after the last committed token. Empty: a chain.
  std::vector<int32_t> parents;
  // The law [vocab_size] that each node was drawn from, given its earlier siblings. Empty: point masses.
  std::vector<std::vector<float>> laws = {};

  int64_t size() const { return static_cast<int64_t>(token_ids.size()); }
  bool is_chain() const { return parents.empty(); }
  int32_t parent(int64_t node) const { return is_chain() ? static_cast<int32_t>(node) - 1 : parents[static_cast<size_t>(node)]; }
  // The children of `node` (-1: the root), in the order in which they are judged.
  std::vector<int32_t> Children(int32_t node) const;
  // The child of `node` that holds `token_id`, or -1.
  int32_t Child(int32_t node, int32_t token_id) const;
  // Tokens from a root to each node, the node included.
  std::vector<int32_t> Depths() const;
};

constexpr int64_t kMaxDraftNodes = 256;

// Throws Error(kDraft) for ids outside the vocabulary, more than max_nodes nodes, a broken tree, two siblings with one
// token, or a law that is none. A tree that is a chain loses its parents.
void CheckDraft(Draft* draft, int64_t vocab_size, int64_t max_nodes);
// The same for tokens that a user gives; throws Error(kInvalidArgument).
void CheckTree(Draft* draft, int64_t vocab_size);

// The ids alone; the same error.
void CheckTokens(const std::vector<int32_t>& token_ids, int64_t vocab_size);

// The first nodes of `draft` whose depth is at most max_depth.
Draft CutDepth(const Draft& draft, int64_t max_depth);

// One tree of several: shared beginnings are merged, earlier drafts first, at most max_nodes nodes.
Draft MergeDrafts(const std::vector<Draft>& drafts, int64_t max_nodes);

}  // namespace llmi

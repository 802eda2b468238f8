// A draft: a chain or a tree of tokens that a drafter proposes after the last committed token.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace llmi {

// How sure a drafter is of a node, by its own measure. Nodes of one kind are accepted about equally often where the node before them is.
struct NodeKind {
  int16_t first = 0;    // in [0, kNumNodeKinds)
  int16_t second = -1;  // of another drafter that proposed the same; -1: none
};
constexpr int32_t kNumNodeKinds = 33;
constexpr int16_t kForcedNode = 32;  // of forced tokens (forced_drafter.h)

struct Draft {
  std::vector<int32_t> token_ids;
  // parents[i] < i; -1 = after the last committed token. Empty: a chain.
  std::vector<int32_t> parents;
  // The law [vocab_size] that each node was drawn from, given its earlier siblings. Empty: point masses.
  std::vector<std::vector<float>> laws = {};
  std::vector<NodeKind> kinds = {};  // of each node; empty: all 0

  int64_t size() const { return static_cast<int64_t>(token_ids.size()); }
  bool is_chain() const { return parents.empty(); }
  int32_t parent(int64_t node) const { return is_chain() ? static_cast<int32_t>(node) - 1 : parents[static_cast<size_t>(node)]; }
  NodeKind kind(int64_t node) const { return kinds.empty() ? NodeKind() : kinds[static_cast<size_t>(node)]; }
  // The children of `node` (-1: the root), in the order in which they are judged.
  std::vector<int32_t> Children(int32_t node) const;
  // The child of `node` that holds `token_id`, or -1.
  int32_t Child(int32_t node, int32_t token_id) const;
  // The depth of each node: the number of tokens from the root to the node, the node included.
  std::vector<int32_t> Depths() const;
};

constexpr int64_t kMaxDraftNodes = 256;

// Throws Error(kDraft) for ids outside the vocabulary, more than max_nodes nodes, a broken tree, two siblings with the same token, or a law
// that is no distribution. If a tree is a chain, its parents are dropped.
void CheckDraft(Draft* draft, int64_t vocab_size, int64_t max_nodes);
// The same for tokens that a user gives; throws Error(kInvalidArgument).
void CheckTree(Draft* draft, int64_t vocab_size);

// Checks only the ids; throws the same error.
void CheckTokens(const std::vector<int32_t>& token_ids, int64_t vocab_size);

// The first nodes of `draft` whose depth is at most max_depth.
Draft CutDepth(const Draft& draft, int64_t max_depth);

// The path of first children.
Draft FirstPath(const Draft& draft);

// The nodes that `keep` lists, ascending, each with its parent.
Draft PickNodes(const Draft& draft, const std::vector<int32_t>& keep);

// Merges several drafts into one tree of at most max_nodes nodes. Shared beginnings become one path; earlier drafts come first.
Draft MergeDrafts(const std::vector<Draft>& drafts, int64_t max_nodes);

}  // namespace llmi

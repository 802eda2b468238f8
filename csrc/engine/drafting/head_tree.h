// Drafts by trained heads: trees of fixed shape that grow from the root, whatever gives the distributions behind their nodes.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/drafting/draft_choice.h"
#include "kernels/ops/context.h"
#include "speculative/trained_head.h"

namespace llmi {

// The tree of one sequence. Its nodes become nodes of the seat's draft; a node has none if no token may come there.
struct HeadTree {
  // The first nodes of the shape, as many as the seat has room for; its chain alone if the verification or the budget wants one.
  HeadTree(Seat* its_seat, std::span<const TreeNode> shape, int64_t its_max_depth);

  int64_t NumChildren(int32_t node) const;
  // The nodes of the draft from the root to this one, it included.
  std::vector<int32_t> PathTo(int32_t place) const;
  // Whether some node follows `node`, and is worth its time.
  bool GoesOn(int32_t node) const;
  // Adds the children of a node (-1: the root).
  void AddChildren(int32_t node, const DraftChoices& choices);

  Seat* seat;
  std::vector<TreeNode> nodes;
  int64_t max_depth;
  std::vector<int32_t> places;   // by node, its place in the draft; -1: none
  std::vector<int32_t> parents;  // by place
  std::vector<int32_t> depths;   // by place
};

// A node whose children come next; -1: the root.
struct TreeFront {
  size_t tree;
  int32_t node;
  size_t parent;  // the entry of the front before that it follows
};

// The source of the logits behind nodes.
class HeadLogits {
 public:
  virtual ~HeadLogits() = default;
  // Behind each entry of the front: of all tokens, or of those of the shortlist; valid until the next call. Entries of one tree follow each
  // other, and may have the same logits.
  virtual std::vector<std::span<const float>> Behind(const std::vector<HeadTree>& trees, const std::vector<TreeFront>& front) = 0;
};

// Grows all trees, depth by depth, and completes the drafts of their seats. shortlist: ascending; empty: all tokens.
void GrowTrees(const KernelContext& context, HeadLogits& source, std::span<const int32_t> shortlist, int64_t vocab_size,
               std::vector<HeadTree>* trees);

}  // namespace llmi

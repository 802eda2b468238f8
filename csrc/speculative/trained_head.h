// Drafters that were trained for the target and loaded with it: the engine does their work, since they read the target's hidden rows and
// keep K and V of their own in a sequence's blocks.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "speculative/seat.h"

namespace llmi {

// A node of a tree of fixed shape: its parent (-1: the root), and its rank among the tokens that may follow the parent. Nodes are in order
// of depth, then of their parents, then of rank; ranks of siblings are 0, 1 and so on.
struct TreeNode {
  int32_t parent;
  int32_t rank;
};
// Throws Error(kInvalidArgument) if the nodes are not in this order.
void CheckTreeNodes(std::span<const TreeNode> tree);
// The likeliest node of each depth: a chain.
std::vector<TreeNode> ChainOf(std::span<const TreeNode> tree);

class TrainedHead {
 public:
  virtual ~TrainedHead() = default;
  // Fills `draft` or `error` of each seat with the first nodes of the tree. The states of the seats are of this head (HeadSource).
  virtual void Propose(std::span<Seat> seats, std::span<const TreeNode> tree) = 0;
};

// What a trained drafter keeps of a sequence.
struct HeadState : DrafterState {
  explicit HeadState(TrainedHead* its_head) : head(its_head) {}
  TrainedHead* const head;  // null: the model was loaded without
};

enum class HeadKind : uint8_t {
  kLayer,    // a decoder layer with K and V of its own (model/eagle.h)
  kLastRow,  // heads that read the row that the last token was drawn from (model/medusa.h)
};

// Makes the states of one sequence's trained drafters.
class HeadSource {
 public:
  virtual ~HeadSource() = default;
  virtual std::unique_ptr<HeadState> NewState(HeadKind kind) = 0;
};

}  // namespace llmi

// Drafts by the trained head that was loaded with the model: a tree of fixed shape, which the engine's part fills (trained_head.h).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "speculative/drafter.h"

namespace llmi {

class HeadDrafter : public Drafter {
 public:
  // tree: the shape of a draft. Throws Error(kInvalidArgument) if its nodes are not in order (TreeNode).
  HeadDrafter(HeadKind head, std::vector<TreeNode> tree);
  std::unique_ptr<DrafterState> NewState(const SequenceKey& sequence, HeadSource& heads) override;
  // Of a layer, kind i + 1: it gives its token a probability of at least kRates[i] (KindOf).
  double expected_rate(int32_t kind, bool greedy) const override;
  static NodeKind KindOf(float probability);
  void Propose(std::span<Seat> seats) override;

 private:
  const HeadKind head_;
  const std::vector<TreeNode> tree_;
};

}  // namespace llmi

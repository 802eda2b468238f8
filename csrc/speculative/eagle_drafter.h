// Drafts by the EAGLE layer that was loaded with the model (model/eagle.h): the engine's part does the work.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "speculative/drafter.h"

namespace llmi {

class EagleDrafter : public Drafter {
 public:
  // tree: the shape of a draft. Throws Error(kInvalidArgument) if its nodes are not in order (TreeNode).
  explicit EagleDrafter(std::vector<TreeNode> tree);
  std::string name() const override { return "Eagle"; }
  std::unique_ptr<DrafterState> NewState(uint64_t /*request_id*/, int64_t /*sample_index*/) override {
    return std::make_unique<DrafterState>();
  }
  double expected_acceptance(int32_t /*confidence*/) const override { return 0.4; }
  // Kind i + 1: the layer gives its token a probability of at least kRates[i] (KindOf).
  double expected_rate(int32_t kind, bool greedy) const override;
  static NodeKind KindOf(float probability);
  bool needs_head() const override { return true; }
  int64_t MostNodes(int64_t wanted) const override { return std::min(wanted, static_cast<int64_t>(tree_.size())); }
  void Propose(std::span<DraftContext*> contexts) override;

 private:
  const std::vector<TreeNode> tree_;
};

}  // namespace llmi

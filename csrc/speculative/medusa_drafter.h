// Drafts by the Medusa heads that were loaded with the model (model/medusa.h): the engine's part does the work.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "speculative/drafter.h"

namespace llmi {

class MedusaDrafter : public Drafter {
 public:
  // tree: the shape of a draft. Throws Error(kInvalidArgument) if its nodes are not in order (TreeNode).
  explicit MedusaDrafter(std::vector<TreeNode> tree);
  std::string name() const override { return "Medusa"; }
  std::unique_ptr<DrafterState> NewState(uint64_t /*request_id*/, int64_t /*sample_index*/) override {
    return std::make_unique<DrafterState>();
  }
  double expected_acceptance(int32_t /*confidence*/) const override { return 0.3; }
  bool needs_last_row() const override { return true; }
  void Propose(std::span<DraftContext*> contexts) override;

 private:
  const std::vector<TreeNode> tree_;
};

}  // namespace llmi

#include "speculative/eagle_drafter.h"

#include <utility>

namespace llmi {

EagleDrafter::EagleDrafter(std::vector<TreeNode> tree) : tree_(std::move(tree)) {
  std::vector<int32_t> num_children(tree_.size() + 1, 0);
  for (size_t i = 0; i < tree_.size(); ++i) {
    const TreeNode& node = tree_[i];
    const bool in_order = i == 0 ? node.parent == -1 : node.parent >= tree_[i - 1].parent;
    CheckArgument(in_order && node.parent < static_cast<int32_t>(i) && node.rank == num_children[static_cast<size_t>(node.parent + 1)]++,
                  "the nodes of a draft's tree are not in order");
  }
}

void EagleDrafter::Propose(std::span<DraftContext*> contexts) {
  if (contexts.empty()) return;
  if (DraftHead* head = contexts[0]->head; head != nullptr) return head->Propose(contexts, tree_);
  for (DraftContext* context : contexts) {
    context->error = Error(ErrorKind::kInvalidArgument, "the model was loaded without this EAGLE layer", "speculative_config");
  }
}

}  // namespace llmi

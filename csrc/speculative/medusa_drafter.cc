#include "speculative/medusa_drafter.h"

#include <utility>

namespace llmi {

MedusaDrafter::MedusaDrafter(std::vector<TreeNode> tree) : tree_(std::move(tree)) { CheckTreeNodes(tree_); }

void MedusaDrafter::Propose(std::span<DraftContext*> contexts) {
  if (contexts.empty()) return;
  if (LastRowHead* medusa = contexts[0]->medusa; medusa != nullptr) return medusa->Propose(contexts, tree_);
  for (DraftContext* context : contexts) {
    context->error = Error(ErrorKind::kInvalidArgument, "the model was loaded without these Medusa heads", "speculative_config");
  }
}

}  // namespace llmi

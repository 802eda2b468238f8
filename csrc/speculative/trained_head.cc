#include "speculative/trained_head.h"

#include "core/errors.h"

namespace llmi {

void CheckTreeNodes(std::span<const TreeNode> tree) {
  std::vector<int32_t> num_children(tree.size() + 1, 0);
  for (size_t i = 0; i < tree.size(); ++i) {
    const TreeNode& node = tree[i];
    const bool in_order = i == 0 ? node.parent == -1 : node.parent >= tree[i - 1].parent;
    CheckArgument(in_order && node.parent < static_cast<int32_t>(i) && node.rank == num_children[static_cast<size_t>(node.parent + 1)]++,
                  "the nodes of a draft's tree are not in order");
  }
}

std::vector<TreeNode> ChainOf(std::span<const TreeNode> tree) {
  std::vector<TreeNode> chain;
  int32_t last = -1;
  for (size_t i = 0; i < tree.size(); ++i) {
    if (tree[i].rank != 0 || tree[i].parent != last) continue;
    last = static_cast<int32_t>(i);
    chain.push_back({static_cast<int32_t>(chain.size()) - 1, 0});
  }
  return chain;
}

}  // namespace llmi

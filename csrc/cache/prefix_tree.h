// The prefix cache: a radix tree over full blocks of tokens (Zheng et al., SGLang, 2024), with the pages that hold
// their K and V.
//
// A node stands for the block of tokens after its parent's block. Children are found by a keyed hash of (parent, tokens); then the tokens
// are compared, so no request can make two texts share a node. A text whose tokens match only the first part of a block can use that part.
// The tree holds one reference to each page; sequences hold their own, and pin the deepest node that they use. When pages are short,
// unpinned leaves are evicted, the least recently used first; so a long text loses its last blocks first.
// Not thread-safe: the engine thread alone calls it.
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cache/block_pool.h"
#include "cache/saved_block.h"

namespace llmi {

class PrefixTree {
 public:
  static constexpr int32_t kNone = -1;

  // pages_per_node: pages of a block in all KV groups together. hash_key: secret, so that nobody can make bucket chains long on purpose.
  PrefixTree(int64_t block_size, int64_t pages_per_node, uint64_t hash_key, BlockPool* pool);

  // The root for a salt. Requests with different salts share nothing. A root without pins and children is dropped.
  int32_t Root(const std::string& salt);
  int32_t FindRoot(const std::string& salt) const;
  int32_t Parent(int32_t node) const { return nodes_[static_cast<size_t>(node)].parent; }
  // The child whose block holds tokens [block_size], or kNone.
  int32_t Find(int32_t parent, const int32_t* tokens) const;
  // Among the latest children, the one whose block has the longest common beginning with `tokens`, and the length of that beginning.
  std::pair<int32_t, int64_t> FindBeginning(int32_t parent, std::span<const int32_t> tokens) const;
  // Adds a child, which must not exist. pages [pages_per_node]: -1 for a group that has given the block back (its window has passed it).
  int32_t Insert(int32_t parent, const int32_t* tokens, const int32_t* pages);
  int32_t page(int32_t node, int64_t index) const { return pages_[static_cast<size_t>(node * pages_per_node_ + index)]; }
  bool HasAllPages(int32_t node) const;
  // Adds a page that the node lacks.
  void AddPage(int32_t node, int64_t index, int32_t page);

  // Whether all slots of the node's block have a drafter's K and V (KvGroups::draft_layer). They depend on the tokens alone.
  bool is_drafted(int32_t node) const { return nodes_[static_cast<size_t>(node)].is_drafted; }
  void SetDrafted(int32_t node, bool is_drafted) { nodes_[static_cast<size_t>(node)].is_drafted = is_drafted; }

  // The states after the node's block (snapshots), in slots of their own; -1: there is none. A node loses them when it is evicted, or
  // alone.
  void HoldStates(BlockPool* slots) { state_slots_ = slots; }
  int32_t state(int32_t node) const { return nodes_[static_cast<size_t>(node)].state; }
  void SetState(int32_t node, int32_t slot);
  // Of the snapshots, the one that was used least recently. Returns false if there is none.
  bool EvictState();
  int64_t num_states() const { return static_cast<int64_t>(states_.size()); }
  void UseState(int32_t node);  // it is now the most recently used one

  // From now on each node has a key by which its block is known outside of this process (saved_block.h), and before_evict is called with
  // each node that EvictOne removes, while it still has its pages. Call it before the first Root.
  void KeepKeys(const std::string& identity, std::function<void(int32_t)> before_evict);
  const PrefixKey& key(int32_t node) const { return keys_[static_cast<size_t>(node)]; }
  std::span<const int32_t> tokens(int32_t node) const {
    return std::span<const int32_t>(tokens_).subspan(static_cast<size_t>(node * block_size_), static_cast<size_t>(block_size_));
  }
  // Whether the node's block has been saved.
  bool is_saved(int32_t node) const { return nodes_[static_cast<size_t>(node)].is_saved; }
  void SetSaved(int32_t node, bool is_saved = true) { nodes_[static_cast<size_t>(node)].is_saved = is_saved; }
  bool is_root(int32_t node) const { return nodes_[static_cast<size_t>(node)].is_root; }
  // All nodes but roots, the most recently used first.
  std::vector<int32_t> NewestFirst() const;

  // A pinned node and its ancestors are not evicted. Unpin marks the node most recently used, so it is evicted last; its ancestors can be
  // evicted only after it, because only leaves are evicted.
  void Pin(int32_t node);
  void Unpin(int32_t node);

  // Evicts the least recently used unpinned leaf. If every leaf is pinned, frees one page on a pinned path that no sequence holds. Returns
  // false if there is nothing to free.
  bool EvictOne();
  // Evicts everything that is not pinned.
  void Clear();

  int64_t num_nodes() const { return num_nodes_; }
  int64_t num_evicted() const { return num_evicted_; }
  // The tree's shape, breadth first, at most `most` nodes, roots included: for each node the place of its parent in this list (-1: a root),
  // and its pins. No tokens.
  std::vector<std::pair<int32_t, int32_t>> Shape(size_t most) const;
  // Checks the tree, and adds its references to `references`, by page. pins: the pins that sequences hold, by node. Returns the first
  // fault, or nothing.
  std::string Audit(const std::unordered_map<int32_t, int32_t>& pins, std::vector<int32_t>* references) const;
  // Adds the references to states, by slot.
  void CountStates(std::vector<int32_t>* references) const;

 private:
  struct Node {
    int32_t parent = kNone;
    int32_t num_children = 0;
    int32_t newest_child = kNone;
    int32_t older = kNone;  // the next older child of the same parent; newer: the next newer one
    int32_t newer = kNone;
    int32_t num_pins = 0;
    int32_t next = kNone;  // the next node in its bucket
    uint64_t hash = 0;
    uint64_t last_used = 0;
    bool alive = false;
    bool is_root = false;
    bool is_drafted = false;
    bool is_saved = false;
    int32_t state = kNone;
    uint64_t state_used = 0;
  };
  uint64_t Hash(int32_t parent, const int32_t* tokens) const;
  bool IsFreeLeaf(const Node& node) const { return node.alive && !node.is_root && node.num_children == 0 && node.num_pins == 0; }
  int32_t NewNode();
  void Link(int32_t node);
  void Unlink(int32_t node);
  void AddChild(int32_t parent, int32_t child);
  void RemoveChild(int32_t parent, int32_t child);
  void Remove(int32_t node);
  bool EvictInnerPages();
  void DropEmptyRoot(int32_t node);
  void DropState(int32_t node);

  int64_t block_size_;
  int64_t pages_per_node_;
  uint64_t hash_key_;
  BlockPool* pool_;
  std::vector<Node> nodes_;
  std::vector<int32_t> tokens_;  // [node][block_size]
  std::vector<int32_t> pages_;   // [node][pages_per_node]
  std::vector<PrefixKey> keys_;  // by node; empty: nobody asks for them
  std::string identity_;
  std::function<void(int32_t)> before_evict_;
  std::vector<int32_t> unused_;
  std::vector<int32_t> buckets_;
  std::unordered_map<std::string, int32_t> roots_;
  std::set<std::pair<uint64_t, int32_t>> free_leaves_;  // (last used, node)
  BlockPool* state_slots_ = nullptr;
  std::set<std::pair<uint64_t, int32_t>> states_;  // (last used, node)
  uint64_t clock_ = 0;
  int64_t num_nodes_ = 0;  // without the roots
  int64_t num_evicted_ = 0;
};

}  // namespace llmi

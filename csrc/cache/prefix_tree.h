// The prefix cache: a radix tree over full blocks of tokens (Zheng et al., SGLang, 2024), with the pages that hold
// their K and V.
//
// A node is one block behind its parent's. Children are found by a keyed hash of (parent, tokens), then the tokens
// are compared: no request can make two texts meet. A block may also be known in part, to a text that parts from it
// inside. The tree holds one reference on each page; sequences hold their
// own, and pin the deepest node that they use. Leaves that nobody pins go first when pages are short, the least
// recently used of them first; a long text therefore shrinks from its end.
// Not thread-safe: the engine thread alone calls it.
#pragma once

#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cache/block_pool.h"

namespace llmi {

class PrefixTree {
 public:
  static constexpr int32_t kNone = -1;

  // pages_per_node: of all KV groups together. hash_key: secret, so that bucket chains cannot be made long on purpose.
  PrefixTree(int64_t block_size, int64_t pages_per_node, uint64_t hash_key, BlockPool* pool);

  // Requests with different salts share nothing. A root that nobody pins and nothing hangs on is dropped.
  int32_t Root(const std::string& salt);
  int32_t FindRoot(const std::string& salt) const;
  int32_t Parent(int32_t node) const { return nodes_[static_cast<size_t>(node)].parent; }
  // The child whose block holds tokens [block_size], or kNone.
  int32_t Find(int32_t parent, const int32_t* tokens) const;
  // A child whose block begins as `tokens` do, and how many of them it has: the best of the children that came last.
  std::pair<int32_t, int64_t> FindBeginning(int32_t parent, std::span<const int32_t> tokens) const;
  // A new child; it must not exist. pages [pages_per_node], -1 where a group has none (it lay behind a window).
  int32_t Insert(int32_t parent, const int32_t* tokens, const int32_t* pages);
  int32_t page(int32_t node, int64_t index) const { return pages_[static_cast<size_t>(node * pages_per_node_ + index)]; }
  bool HasAllPages(int32_t node) const;
  // Gives a node a page that it lacks.
  void AddPage(int32_t node, int64_t index, int32_t page);

  // A pinned node stays, and so do its ancestors. Unpinned, it goes last of all; its ancestors, leaves once it is gone, follow.
  void Pin(int32_t node);
  void Unpin(int32_t node);

  // Gives back the pages of the least recently used leaf, or, where only pinned paths are left, pages of theirs that
  // no sequence holds. False if there is nothing to give.
  bool EvictOne();
  // Evicts all that is not pinned.
  void Clear();

  int64_t num_nodes() const { return num_nodes_; }
  int64_t num_evicted() const { return num_evicted_; }
  // Adds the tree's references, by page. Returns the first fault, or nothing. pins: what sequences hold, by node.
  std::string Audit(const std::unordered_map<int32_t, int32_t>& pins, std::vector<int32_t>* references) const;

 private:
  struct Node {
    int32_t parent = kNone;
    int32_t num_children = 0;
    int32_t newest_child = kNone;
    int32_t older = kNone;  // among its parent's children
    int32_t newer = kNone;
    int32_t num_pins = 0;
    int32_t next = kNone;  // in its bucket
    uint64_t hash = 0;
    uint64_t last_used = 0;
    bool alive = false;
    bool is_root = false;
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

  int64_t block_size_;
  int64_t pages_per_node_;
  uint64_t hash_key_;
  BlockPool* pool_;
  std::vector<Node> nodes_;
  std::vector<int32_t> tokens_;  // [node][block_size]
  std::vector<int32_t> pages_;   // [node][pages_per_node]
  std::vector<int32_t> unused_;
  std::vector<int32_t> buckets_;
  std::unordered_map<std::string, int32_t> roots_;
  std::set<std::pair<uint64_t, int32_t>> free_leaves_;  // (last used, node)
  uint64_t clock_ = 0;
  int64_t num_nodes_ = 0;  // roots left out
  int64_t num_evicted_ = 0;
};

}  // namespace llmi

#include "cache/prefix_tree.h"

#include <algorithm>

#include "core/errors.h"

namespace llmi {
namespace {

constexpr size_t kFirstBuckets = 1024;  // a power of two; doubled when nodes outnumber them
constexpr int kMostChildrenCompared = 8;

}  // namespace

PrefixTree::PrefixTree(int64_t block_size, int64_t pages_per_node, uint64_t hash_key, BlockPool* pool)
    : block_size_(block_size), pages_per_node_(pages_per_node), hash_key_(hash_key), pool_(pool), buckets_(kFirstBuckets, kNone) {}

uint64_t PrefixTree::Hash(int32_t parent, const int32_t* tokens) const {
  uint64_t hash = hash_key_ ^ (static_cast<uint64_t>(static_cast<uint32_t>(parent)) * 0x9E3779B97F4A7C15u);
  for (int64_t i = 0; i < block_size_; ++i) {
    hash = (hash ^ static_cast<uint32_t>(tokens[i])) * 0xFF51AFD7ED558CCDu;
    hash ^= hash >> 32;
  }
  return hash ^ (hash_key_ >> 7);
}

int32_t PrefixTree::NewNode() {
  if (unused_.empty()) {
    unused_.push_back(static_cast<int32_t>(nodes_.size()));
    nodes_.emplace_back();
    tokens_.resize(tokens_.size() + static_cast<size_t>(block_size_));
    pages_.resize(pages_.size() + static_cast<size_t>(pages_per_node_), kNone);
    if (before_evict_) keys_.emplace_back();
  }
  const int32_t node = unused_.back();
  unused_.pop_back();
  nodes_[static_cast<size_t>(node)] = Node{};
  nodes_[static_cast<size_t>(node)].alive = true;
  return node;
}

int32_t PrefixTree::Root(const std::string& salt) {
  const auto found = roots_.find(salt);
  if (found != roots_.end()) return found->second;
  const int32_t root = NewNode();
  nodes_[static_cast<size_t>(root)].is_root = true;
  roots_[salt] = root;
  if (before_evict_) keys_[static_cast<size_t>(root)] = RootKey(identity_, salt);
  return root;
}

int32_t PrefixTree::FindRoot(const std::string& salt) const {
  const auto found = roots_.find(salt);
  return found == roots_.end() ? kNone : found->second;
}

std::vector<std::pair<int32_t, int32_t>> PrefixTree::Shape(size_t most) const {
  std::vector<int32_t> order;
  for (const auto& root : roots_) order.push_back(root.second);
  std::sort(order.begin(), order.end());
  order.resize(std::min(order.size(), most));
  std::vector<std::pair<int32_t, int32_t>> shape;
  for (const int32_t root : order) shape.push_back({-1, nodes_[static_cast<size_t>(root)].num_pins});
  for (size_t place = 0; place < order.size() && order.size() < most; ++place) {
    int32_t child = nodes_[static_cast<size_t>(order[place])].newest_child;
    for (; child != kNone && order.size() < most; child = nodes_[static_cast<size_t>(child)].older) {
      order.push_back(child);
      shape.push_back({static_cast<int32_t>(place), nodes_[static_cast<size_t>(child)].num_pins});
    }
  }
  return shape;
}

void PrefixTree::KeepKeys(const std::string& identity, std::function<void(int32_t)> before_evict) {
  identity_ = identity;
  before_evict_ = std::move(before_evict);
}

std::vector<int32_t> PrefixTree::NewestFirst() const {
  std::vector<int32_t> nodes;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    if (nodes_[i].alive && !nodes_[i].is_root) nodes.push_back(static_cast<int32_t>(i));
  }
  std::sort(nodes.begin(), nodes.end(),
            [this](int32_t a, int32_t b) { return nodes_[static_cast<size_t>(a)].last_used > nodes_[static_cast<size_t>(b)].last_used; });
  return nodes;
}

void PrefixTree::DropEmptyRoot(int32_t node) {
  Node& entry = nodes_[static_cast<size_t>(node)];
  if (!entry.is_root || entry.num_children > 0 || entry.num_pins > 0) return;
  std::erase_if(roots_, [&](const auto& root) { return root.second == node; });
  entry.alive = false;
  unused_.push_back(node);
}

int32_t PrefixTree::Find(int32_t parent, const int32_t* tokens) const {
  const uint64_t hash = Hash(parent, tokens);
  for (int32_t node = buckets_[hash & (buckets_.size() - 1)]; node != kNone; node = nodes_[static_cast<size_t>(node)].next) {
    const Node& entry = nodes_[static_cast<size_t>(node)];
    if (entry.hash == hash && entry.parent == parent &&
        std::equal(tokens, tokens + block_size_, tokens_.begin() + static_cast<int64_t>(node) * block_size_)) {
      return node;
    }
  }
  return kNone;
}

std::pair<int32_t, int64_t> PrefixTree::FindBeginning(int32_t parent, std::span<const int32_t> tokens) const {
  std::pair<int32_t, int64_t> best = {kNone, 0};
  int32_t child = nodes_[static_cast<size_t>(parent)].newest_child;
  for (int i = 0; i < kMostChildrenCompared && child != kNone; ++i, child = nodes_[static_cast<size_t>(child)].older) {
    const auto block = tokens_.begin() + static_cast<int64_t>(child) * block_size_;
    const auto differs = std::mismatch(tokens.begin(), tokens.end(), block, block + block_size_);
    const int64_t common = differs.first - tokens.begin();
    if (common > best.second) best = {child, common};
  }
  return best;
}

void PrefixTree::AddChild(int32_t parent, int32_t child) {
  Node& above = nodes_[static_cast<size_t>(parent)];
  ++above.num_children;
  nodes_[static_cast<size_t>(child)].older = above.newest_child;
  if (above.newest_child != kNone) nodes_[static_cast<size_t>(above.newest_child)].newer = child;
  above.newest_child = child;
}

void PrefixTree::RemoveChild(int32_t parent, int32_t child) {
  const Node& entry = nodes_[static_cast<size_t>(child)];
  if (entry.older != kNone) nodes_[static_cast<size_t>(entry.older)].newer = entry.newer;
  int32_t& link = entry.newer == kNone ? nodes_[static_cast<size_t>(parent)].newest_child : nodes_[static_cast<size_t>(entry.newer)].older;
  link = entry.older;
  --nodes_[static_cast<size_t>(parent)].num_children;
}

void PrefixTree::Link(int32_t node) {
  Node& entry = nodes_[static_cast<size_t>(node)];
  int32_t& bucket = buckets_[entry.hash & (buckets_.size() - 1)];
  entry.next = bucket;
  bucket = node;
}

void PrefixTree::Unlink(int32_t node) {
  const Node& entry = nodes_[static_cast<size_t>(node)];
  int32_t* link = &buckets_[entry.hash & (buckets_.size() - 1)];
  while (*link != node) link = &nodes_[static_cast<size_t>(*link)].next;
  *link = entry.next;
}

int32_t PrefixTree::Insert(int32_t parent, const int32_t* tokens, const int32_t* pages) {
  const int32_t node = NewNode();
  Node& entry = nodes_[static_cast<size_t>(node)];
  entry.parent = parent;
  entry.hash = Hash(parent, tokens);
  entry.last_used = ++clock_;
  std::copy(tokens, tokens + block_size_, tokens_.begin() + static_cast<int64_t>(node) * block_size_);
  if (before_evict_) keys_[static_cast<size_t>(node)] = ChildKey(key(parent), {tokens, static_cast<size_t>(block_size_)});
  for (int64_t i = 0; i < pages_per_node_; ++i) {
    pages_[static_cast<size_t>(node * pages_per_node_ + i)] = kNone;
    if (pages[i] >= 0) AddPage(node, i, pages[i]);
  }
  const Node& above = nodes_[static_cast<size_t>(parent)];
  if (IsFreeLeaf(above)) free_leaves_.erase({above.last_used, parent});
  AddChild(parent, node);
  ++num_nodes_;
  if (static_cast<size_t>(num_nodes_) > buckets_.size()) {
    buckets_.assign(buckets_.size() * 2, kNone);
    for (size_t i = 0; i < nodes_.size(); ++i) {
      if (nodes_[i].alive && !nodes_[i].is_root) Link(static_cast<int32_t>(i));
    }
  } else {
    Link(node);
  }
  free_leaves_.insert({entry.last_used, node});
  return node;
}

bool PrefixTree::HasAllPages(int32_t node) const {
  const auto first = pages_.begin() + static_cast<int64_t>(node) * pages_per_node_;
  return std::all_of(first, first + pages_per_node_, [](int32_t page) { return page >= 0; });
}

void PrefixTree::AddPage(int32_t node, int64_t index, int32_t page) {
  pages_[static_cast<size_t>(node * pages_per_node_ + index)] = page;
  pool_->Cache(page);
}

void PrefixTree::SetState(int32_t node, int32_t slot) {
  Node& entry = nodes_[static_cast<size_t>(node)];
  state_slots_->Cache(slot);
  entry.state = slot;
  entry.state_used = ++clock_;
  states_.insert({entry.state_used, node});
}

void PrefixTree::UseState(int32_t node) {
  Node& entry = nodes_[static_cast<size_t>(node)];
  states_.erase({entry.state_used, node});
  entry.state_used = ++clock_;
  states_.insert({entry.state_used, node});
}

void PrefixTree::DropState(int32_t node) {
  Node& entry = nodes_[static_cast<size_t>(node)];
  if (entry.state < 0) return;
  states_.erase({entry.state_used, node});
  state_slots_->Uncache(entry.state);
  entry.state = kNone;
}

bool PrefixTree::EvictState() {
  if (states_.empty()) return false;
  DropState(states_.begin()->second);
  return true;
}

void PrefixTree::CountStates(std::vector<int32_t>* references) const {
  for (const auto& [used, node] : states_) ++(*references)[static_cast<size_t>(state(node))];
}

void PrefixTree::Pin(int32_t node) {
  Node& entry = nodes_[static_cast<size_t>(node)];
  if (IsFreeLeaf(entry)) free_leaves_.erase({entry.last_used, node});
  ++entry.num_pins;
}

void PrefixTree::Unpin(int32_t node) {
  Node& entry = nodes_[static_cast<size_t>(node)];
  CheckInternal(entry.num_pins > 0, "a prefix node was unpinned once too often");
  --entry.num_pins;
  entry.last_used = ++clock_;
  if (IsFreeLeaf(entry)) free_leaves_.insert({entry.last_used, node});
  DropEmptyRoot(node);
}

void PrefixTree::Remove(int32_t node) {
  Node& entry = nodes_[static_cast<size_t>(node)];
  free_leaves_.erase({entry.last_used, node});
  DropState(node);
  Unlink(node);
  for (int64_t i = 0; i < pages_per_node_; ++i) {
    int32_t& page = pages_[static_cast<size_t>(node * pages_per_node_ + i)];
    if (page >= 0) pool_->Uncache(page);
    page = kNone;
  }
  const Node& above = nodes_[static_cast<size_t>(entry.parent)];
  RemoveChild(entry.parent, node);
  if (IsFreeLeaf(above)) free_leaves_.insert({above.last_used, entry.parent});
  const int32_t parent = entry.parent;
  entry.alive = false;
  unused_.push_back(node);
  DropEmptyRoot(parent);
  --num_nodes_;
  ++num_evicted_;
}

bool PrefixTree::EvictOne() {
  if (free_leaves_.empty()) return EvictInnerPages();
  const int32_t node = free_leaves_.begin()->second;
  if (before_evict_) before_evict_(node);
  Remove(node);
  return true;
}

// Frees one page of a pinned path that no sequence holds: the windows of all its users have passed it.
bool PrefixTree::EvictInnerPages() {
  if (pool_->num_cached() == 0) return false;
  for (int32_t& page : pages_) {
    if (page < 0 || pool_->references(page) > 1) continue;
    pool_->Uncache(page);
    page = kNone;
    return true;
  }
  return false;
}

void PrefixTree::Clear() {
  while (!free_leaves_.empty()) Remove(free_leaves_.begin()->second);
  while (EvictInnerPages()) {
  }
  while (EvictState()) {
  }
}

std::string PrefixTree::Audit(const std::unordered_map<int32_t, int32_t>& pins, std::vector<int32_t>* references) const {
  std::vector<int32_t> children(nodes_.size(), 0);
  size_t num_free_leaves = 0;
  int64_t num_alive = 0;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    const Node& node = nodes_[i];
    const auto index = static_cast<int32_t>(i);
    const auto held = pins.find(index);
    if (node.num_pins != (held == pins.end() ? 0 : held->second)) return "a prefix node counts wrong pins";
    if (!node.alive || node.is_root) continue;
    ++num_alive;
    const auto parent = static_cast<size_t>(node.parent);
    if (!nodes_[parent].alive) return "a prefix node outlived its parent";
    ++children[parent];
    if (Find(node.parent, tokens_.data() + static_cast<int64_t>(index) * block_size_) != index) return "a prefix node cannot be found";
    if (IsFreeLeaf(node)) {
      ++num_free_leaves;
      if (!free_leaves_.contains({node.last_used, index})) return "a prefix leaf is missing from the eviction order";
    }
    for (int64_t p = 0; p < pages_per_node_; ++p) {
      if (page(index, p) >= 0) ++(*references)[static_cast<size_t>(page(index, p))];
    }
  }
  for (size_t i = 0; i < nodes_.size(); ++i) {
    if (!nodes_[i].alive) continue;
    if (nodes_[i].num_children != children[i]) return "a prefix node counts wrong children";
    int32_t newer = kNone;
    for (int32_t child = nodes_[i].newest_child; child != kNone; child = nodes_[static_cast<size_t>(child)].older) {
      const Node& entry = nodes_[static_cast<size_t>(child)];
      if (!entry.alive || entry.parent != static_cast<int32_t>(i) || entry.newer != newer) return "a prefix node lists a wrong child";
      newer = child;
      --children[i];
    }
    if (children[i] != 0) return "a prefix node does not list all its children";
  }
  if (num_free_leaves != free_leaves_.size()) return "the eviction order holds what is no free leaf";
  return num_alive == num_nodes_ ? "" : "the prefix tree counts wrong nodes";
}

}  // namespace llmi

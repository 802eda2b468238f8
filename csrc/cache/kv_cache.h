// Sequences' block tables over the pool: reserve, commit, rollback, fork, free.
//
// Invariant: a table holds a page for every slot in [first visible block, capacity) of each group, -1 before;
// only the last block may be partly filled; a shared block is copied before it is written.
// Not thread-safe: the engine thread alone calls it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "cache/block_pool.h"
#include "cache/kv_groups.h"
#include "cache/prefix_tree.h"

namespace llmi {

// One sequence's cache: `num_tokens` slots are computed. tables[g] has pages_per_block entries per logical block.
struct KvSequence {
  int64_t num_tokens = 0;
  std::vector<std::vector<int32_t>> tables;
  std::vector<int64_t> num_returned;  // logical blocks given back behind the window, per group
  // Its place in the prefix tree: the node of its last indexed block (the root before the first), pinned.
  int32_t prefix_node = PrefixTree::kNone;
  int64_t num_indexed = 0;  // blocks
};

// What a preempted sequence needs to go on: its blocks, but those behind a window, group after group.
struct KvHostCopy {
  int64_t num_tokens;
  std::vector<int64_t> num_returned;
  int64_t num_pages;
  std::vector<uint8_t> bytes;
};

class KvCache {
 public:
  // device: the memory of its pages; null: the host's.
  KvCache(KvGroups groups, int64_t num_pages, Device* device = nullptr);

  const KvGroups& groups() const { return groups_; }
  BlockPool& pool() { return pool_; }
  const BlockPool& pool() const { return pool_; }
  KvView View(int layer) { return groups_.View(layer, pool_.arena()); }

  // Registers an empty sequence; Free unregisters it.
  void Init(KvSequence* sequence);
  // Shares all of parent's blocks.
  void Fork(const KvSequence& parent, KvSequence* child);
  void Free(KvSequence* sequence);

  // Pages that Reserve(sequence, num_new) would take, copies on write included.
  int64_t PagesNeeded(const KvSequence& sequence, int64_t num_new) const;
  enum class Reclaim : uint8_t {
    kAll,        // whatever can be computed again gives way
    kCacheOnly,  // free pages, and those that the prefix cache alone holds
  };
  // Makes slots [num_tokens, num_tokens + num_new) writable, all or nothing; false if pages are short.
  bool TryReserve(KvSequence* sequence, int64_t num_new, Reclaim reclaim = Reclaim::kAll);
  // Keeps full blocks of sequences that have ended, for others that begin alike. Before the first Init.
  void EnablePrefixCache(uint64_t hash_key);
  bool has_prefix_cache() const { return prefix_tree_ != nullptr; }
  // Gives an empty sequence the blocks of the longest known beginning of token_ids, at most max_tokens, of which every
  // group still has what its window sees; the last block may be known in part, and is copied when it is written.
  // Returns the number of tokens; kv.num_tokens grows by it.
  int64_t AttachPrefix(KvSequence* sequence, std::span<const int32_t> token_ids, int64_t max_tokens, const std::string& salt);
  // Tokens that AttachPrefix would find, nothing done.
  int64_t MatchPrefix(std::span<const int32_t> token_ids, int64_t max_tokens, const std::string& salt) const;
  void ClearPrefixCache();
  const PrefixTree* prefix_tree() const { return prefix_tree_.get(); }
  // Free pages, and those that the prefix cache would give.
  int64_t num_available() const { return pool_.num_free() + pool_.num_cached(); }
  // Called when pages are short: frees some and returns true, or has none to free. Never touches running sequences.
  void set_reclaimer(std::function<bool()> reclaimer) { reclaimer_ = std::move(reclaimer); }
  // The reserved slots now hold committed tokens; blocks behind the window are given back. With token_ids, the
  // sequence's tokens from its start, full blocks of a sequence that began with AttachPrefix become known to others; a
  // block that is known already is swapped for the known one, whose bits are equal.
  void Commit(KvSequence* sequence, int64_t num_new, std::span<const int32_t> token_ids = {});
  // Drops the last num_tokens slots and the blocks behind them. False, and nothing done, if the shorter
  // sequence would need blocks that were given back: it must be computed again.
  bool TryRollback(KvSequence* sequence, int64_t num_tokens);
  int64_t NumCommittedPages(const KvSequence& sequence) const;  // of its committed blocks
  // These blocks, to the host; and into the cache again, for an empty sequence: false, and nothing done, if
  // pages are short. With token_ids, its full blocks are known to others again.
  KvHostCopy CopyToHost(const KvSequence& sequence);
  bool TryRestore(KvSequence* sequence, const KvHostCopy& copy, std::span<const int32_t> token_ids, const std::string& salt);
  double copy_seconds_per_page() const { return copy_seconds_per_page_; }  // seen last; 0 before

  // Copies K and V of one slot to another, bit for bit, in every layer. Both are past num_tokens and reserved.
  void MoveSlot(const KvSequence& sequence, int64_t from, int64_t to);
  // Drops reserved blocks past num_tokens.
  void Trim(KvSequence* sequence);

  // Empty if counts, tables and free list agree.
  std::string Audit() const;

  int64_t num_copies_on_write() const { return num_copies_on_write_; }
  int64_t num_window_blocks_returned() const { return num_window_blocks_returned_; }
  int64_t num_sequences() const { return static_cast<int64_t>(sequences_.size()); }
  // Slots of live sequences that hold tokens, and slots of all pages in use, in units of one group's slots.
  double WastedShare() const;

 private:
  // The root, then a node for each block; of the last one perhaps only the first tokens are right.
  struct KnownPrefix {
    std::vector<int32_t> path;
    int64_t num_tokens;
  };
  // Frees pages until need() of them are; false if there is nothing left to free.
  template <typename Need>
  bool MakeRoom(const Need& need, Reclaim reclaim) {
    while (need() > pool_.num_free()) {
      if (prefix_tree_ != nullptr && prefix_tree_->EvictOne()) continue;
      if (reclaim == Reclaim::kCacheOnly || !reclaimer_ || !reclaimer_()) return false;
    }
    return true;
  }
  KnownPrefix Walk(int32_t root, std::span<const int32_t> token_ids, int64_t max_tokens) const;
  void IndexBlocks(KvSequence* sequence, std::span<const int32_t> token_ids);
  void Unindex(KvSequence* sequence, int64_t num_blocks);
  void MovePin(KvSequence* sequence, int32_t node);
  int64_t NumBlocks(int64_t num_tokens) const { return (num_tokens + groups_.block_size() - 1) / groups_.block_size(); }

  KvGroups groups_;
  BlockPool pool_;
  std::unique_ptr<PrefixTree> prefix_tree_;
  std::function<bool()> reclaimer_;
  std::unordered_set<const KvSequence*> sequences_;
  int64_t num_copies_on_write_ = 0;
  int64_t num_window_blocks_returned_ = 0;
  double copy_seconds_per_page_ = 0;
};

}  // namespace llmi

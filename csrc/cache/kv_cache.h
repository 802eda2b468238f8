// The block tables of all sequences, over one pool of pages: reserve, commit, rollback, fork, free.
//
// Invariant: for each group, a table holds the pages of every block from the first visible one to its end, those of sinks, and -1 for the
// others; only the last block may be partly filled; a shared block is copied before it is written.
// Not thread-safe: the engine thread alone calls it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "cache/block_pool.h"
#include "cache/key_bounds.h"
#include "cache/call_observer.h"
#include "cache/kv_groups.h"
#include "cache/prefix_tree.h"
#include "cache/saved_block.h"
#include "cache/state_pool.h"
#include "kernels/ops/attention.h"

namespace llmi {

// Which slots of a sequence hold a drafter's K and V (KvGroups::draft_layer). Slot s holds those of the row that reads token s and the
// target's hidden row of token s - 1, so a block's depend on the tokens up to its end alone; slot 0 has none. decisions/0006.
struct DraftSlots {
  enum class Use : uint8_t {
    kNone,          // no drafter reads them
    kMayStartCold,  // where many tokens of a known beginning lack them, the drafter starts behind these
    kNeedsAll,      // a known beginning counts only as far as it has them
  };
  Use use = Use::kNone;
  int64_t first = 1;  // slots [first, end) hold them
  int64_t end = 1;
};

// One sequence's cache: `num_tokens` slots are computed. tables[g] has pages_per_block entries per logical block.
struct KvSequence {
  int64_t num_tokens = 0;
  std::vector<std::vector<int32_t>> tables;
  // Logical blocks that each group gave back because its window has passed them, counted with those of sinks, which it keeps.
  std::vector<int64_t> num_returned;
  SparseView view;  // set before Init
  // The pinned node of the prefix tree that holds the last indexed block; the root if no block is indexed.
  int32_t prefix_node = PrefixTree::kNone;
  int64_t num_indexed = 0;  // blocks that are in the prefix tree
  DraftSlots draft;         // of a fork, its parent's
  // Bytes that its owner keeps of each token elsewhere, and the pages that are set aside for them while it has a cache: so the pool's size
  // bounds them, too. A fork has none.
  int64_t side_bytes = 0;
  std::vector<int32_t> side_pages;
  SequenceState state;  // of layers that have one
};

// The data with which a preempted sequence can continue: its blocks, except those that a window has passed, group after group.
struct KvHostCopy {
  int64_t num_tokens;
  std::vector<int64_t> num_returned;
  int64_t num_pages;
  std::vector<uint8_t> bytes;
  DraftSlots draft;
};

// What happened to pages between two forward passes, for caches of other processes that have the same pages.
struct PageEvent {
  int32_t group;  // -1: a whole page was copied; -2: a row of a log of states, and pages are its chunks; else a slot of the pages that are
                  // the index-th of a block in this KV group
  int32_t index;
  int32_t from_page, to_page;
  int32_t from_slot, to_slot;  // within their blocks
};

constexpr int32_t kPageEvent = -1, kLogEvent = -2;  // PageEvent::group

class KvCache {
 public:
  // device: its pages are in this device's memory; null: in the host's. states: of layers that have one.
  // has_arena: false: its pages hold nothing, for simulations.
  KvCache(KvGroups groups, int64_t num_pages, Device* device = nullptr, const StateSizes& states = {}, bool has_arena = true);

  const KvGroups& groups() const { return groups_; }
  BlockPool& pool() { return pool_; }
  const BlockPool& pool() const { return pool_; }
  KvView View(int layer) { return groups_.View(layer, pool_.arena()); }
  // Bounds of the keys, for sequences that pick what they see. Throws Error(kOutOfMemory) if there is no room for them. Harmless if they
  // are there.
  void MakeBounds();
  KeyBoundsView BoundsView(int layer) { return bounds_->View(layer); }
  // The rows of these segments, by KV group, are to be written.
  void ForgetBounds(std::span<const std::vector<AttentionSegment>> segments);
  StatePool* states() { return states_.get(); }  // null: no layer has a state
  const StatePool* states() const { return states_.get(); }
  // The prefix cache gets states after each multiple of this many tokens, a multiple of the block size; 0: only those that sequences ask
  // for.
  void set_snapshot_interval(int64_t num_tokens) { snapshot_interval_ = num_tokens; }

  void set_observer(CallObserver* observer) { observer_ = observer; }  // null: nobody
  // While it lives the calls are not observed, since they belong to another call, whose observer this is.
  class Unobserved {
   public:
    explicit Unobserved(KvCache* cache) : cache_(cache), observer_(std::exchange(cache->observer_, nullptr)) {}
    ~Unobserved() { cache_->observer_ = observer_; }
    Unobserved(const Unobserved&) = delete;
    Unobserved& operator=(const Unobserved&) = delete;
    CallObserver* observer() const { return observer_; }

   private:
    KvCache* cache_;
    CallObserver* observer_;
  };

  // Registers an empty sequence; Free unregisters it.
  void Init(KvSequence* sequence);
  // Shares all of parent's blocks.
  void Fork(const KvSequence& parent, KvSequence* child);
  void Free(KvSequence* sequence);

  // Pages that TryReserve(sequence, num_new) would take, copies on write included.
  int64_t PagesNeeded(const KvSequence& sequence, int64_t num_new) const;
  enum class Reclaim : uint8_t {
    kAll,        // take free pages, pages that only the prefix cache holds, and pages that the reclaimer frees
    kCacheOnly,  // take free pages, and pages that only the prefix cache holds
  };
  // Makes slots [num_tokens, num_tokens + num_new) writable, the last num_drafted of them for a draft. If pages, or slots of states, are
  // short, returns false and reserves nothing.
  bool TryReserve(KvSequence* sequence, int64_t num_new, Reclaim reclaim = Reclaim::kAll, int64_t num_drafted = 0);
  // Bytes that such a call would take.
  uint64_t BytesNeeded(const KvSequence& sequence, int64_t num_new, int64_t num_drafted) const;
  // From now on full blocks of ended sequences are kept for later sequences with the same beginning. Call it before the first Init.
  void EnablePrefixCache(uint64_t hash_key);
  bool has_prefix_cache() const { return prefix_tree_ != nullptr; }
  // Gives an empty sequence the blocks of the longest usable beginning of token_ids in the prefix cache, at most max_tokens tokens. A
  // beginning is usable if the cache still has, for every group, the blocks that the group's window sees. The last block may match in part;
  // it is copied when it is written. With states a beginning ends where the cache has one. Returns the number of tokens found and adds it
  // to sequence->num_tokens. With a drafter (sequence->draft.use) it is one token less than the blocks hold: that token's hidden row is
  // what the drafter reads next; with states the drafter starts behind the next row, or there is no known beginning (kNeedsAll).
  int64_t AttachPrefix(KvSequence* sequence, std::span<const int32_t> token_ids, int64_t max_tokens, const std::string& salt);
  // The number of tokens that AttachPrefix would find. Changes nothing.
  int64_t MatchPrefix(std::span<const int32_t> token_ids, int64_t max_tokens, const std::string& salt, const SparseView& view = {}) const;
  // The blocks that a group of the sequence has given back.
  int64_t NumReturned(const KvSequence& sequence, size_t group) const {
    return std::max<int64_t>(0, sequence.num_returned[group] - groups_.NumSinkBlocks(sequence.view));
  }
  // Whether a group of the sequence has given a block back.
  bool IsReturned(const KvSequence& sequence, size_t group, int64_t block) const {
    return block < sequence.num_returned[group] && block >= groups_.NumSinkBlocks(sequence.view);
  }
  void ClearPrefixCache();
  const PrefixTree* prefix_tree() const { return prefix_tree_.get(); }
  // Free pages, and pages that only the prefix cache holds.
  int64_t num_available() const { return pool_.num_free() + pool_.num_cached(); }
  // reclaimer: called when pages are short. It frees some pages and returns true, or returns false if it has none to free. It must not
  // touch running sequences.
  void set_reclaimer(std::function<bool()> reclaimer) { reclaimer_ = std::move(reclaimer); }
  // The next num_new reserved slots now hold committed tokens; blocks that a window has passed are given back.
  // token_ids: the sequence's tokens from its start; empty: no block enters the prefix cache. If the sequence began with AttachPrefix, its
  // full blocks enter the prefix cache. If the cache already has a block, the sequence takes the cache's pages, which have equal bits.
  void Commit(KvSequence* sequence, int64_t num_new, std::span<const int32_t> token_ids = {});
  // Drops the last num_tokens slots and blocks that hold no others. Returns false and changes nothing if the shorter sequence would need
  // blocks that were given back: the caller must compute it again.
  bool TryRollback(KvSequence* sequence, int64_t num_tokens);
  int64_t NumCommittedPages(const KvSequence& sequence) const;  // pages of its committed blocks
  // Copies the committed blocks to the host.
  KvHostCopy CopyToHost(const KvSequence& sequence);
  // Copies these blocks back, into an empty sequence. Returns false and changes nothing if pages are short. token_ids: the sequence's
  // tokens; its full blocks then enter the prefix cache. Empty: they do not.
  bool TryRestore(KvSequence* sequence, const KvHostCopy& copy, std::span<const int32_t> token_ids, const std::string& salt);
  double copy_seconds_per_page() const { return copy_seconds_per_page_; }  // of the latest CopyToHost; 0 before the first

  // --- Blocks that outlive the process (kv_saved.cc).
  // From now on save(node) is called for blocks of the prefix cache that are used again, and for those that are about to leave it, unless
  // they were saved. identity: see saved_block.h. label: the model's name. Call it behind EnablePrefixCache. There must be no states.
  void SaveBlocks(const std::string& identity, const std::string& label, std::function<void(int32_t)> save);
  PrefixTree* mutable_prefix_tree() { return prefix_tree_.get(); }
  // What a node's block is, and its sealed bytes: K and V of each layer in order, a drafter's left out, whatever pages they lie in.
  SavedHeader HeaderOf(int32_t node) const;
  std::vector<uint8_t> BytesOf(const SavedHeader& header, int32_t node);
  // What a block of tokens [index * block_size, (index + 1) * block_size) must be.
  SavedHeader ExpectedHeader(std::span<const int32_t> token_ids, int64_t index, const PrefixKey& root, const PrefixKey& parent) const;
  const std::string& identity() const { return identity_; }
  // The blocks at the beginning of token_ids that the prefix cache has, root first; empty without a root.
  std::vector<int32_t> KnownPath(std::span<const int32_t> token_ids, const std::string& salt) const;
  // The next block of a sequence of whole blocks becomes this one, as if it had been computed. Returns false and changes nothing if pages
  // are short, or if the bytes are not those of such a block.
  bool AppendSaved(KvSequence* sequence, const ParsedBlock& block, std::span<const int32_t> token_ids);

  // The drafter's K and V of the slots below `end` are stored. Full blocks of them serve later sequences.
  void CommitDraft(KvSequence* sequence, int64_t end);
  // The drafter continues without the slots below `first`.
  void SkipDraft(KvSequence* sequence, int64_t first) const;

  // Copies K and V of one slot to another, bit for bit, in every layer. Both slots must be reserved and past num_tokens.
  void MoveSlot(const KvSequence& sequence, int64_t from, int64_t to);
  // From now on copies of pages and slots are noted; TakeEvents returns those since its last call.
  void NoteEvents() { notes_events_ = true; }
  std::vector<PageEvent> TakeEvents() { return std::exchange(events_, {}); }
  // Whether the cache has the event's pages and slots.
  bool Knows(const PageEvent& event) const;
  // Does the same to this cache's pages; those of a drafter's layer elsewhere.
  void Repeat(const PageEvent& event);

  // Drops reserved blocks past num_tokens.
  void Trim(KvSequence* sequence);

  // Checks that counts, tables and free list agree. Returns the first fault, or nothing.
  std::string Audit() const;

  int64_t num_copies_on_write() const { return num_copies_on_write_; }
  int64_t num_window_blocks_returned() const { return num_window_blocks_returned_; }
  int64_t num_sequences() const { return static_cast<int64_t>(sequences_.size()); }
  // The share of the slots of live sequences' pages that hold no token.
  double WastedShare() const;

 private:
  // path: the root, then a node for each block. Only the first tokens of the last block may match.
  struct KnownPrefix {
    std::vector<int32_t> path;
    int64_t num_tokens;
    int64_t num_known = 0;  // tokens of all blocks that the tree knows, with a state behind them or not
  };
  // Frees pages until need() pages are free. Returns false if nothing is left to free.
  template <typename Need>
  bool MakeRoom(const Need& need, Reclaim reclaim) {
    while (need() > pool_.num_free()) {
      if (prefix_tree_ != nullptr && prefix_tree_->EvictOne()) continue;
      if (!Reclaims(reclaim)) return false;
    }
    return true;
  }
  bool TryReserveSlots(KvSequence* sequence, int64_t num_new, Reclaim reclaim, int64_t num_drafted);
  bool Reclaims(Reclaim reclaim) const { return reclaim == Reclaim::kAll && reclaimer_ && reclaimer_(); }
  bool MakeStateRoom(const SequenceState& state, const StatePool::Step& step, Reclaim reclaim);
  void PlanStates(KvSequence* sequence, const StatePool::Step& step);
  void KeepSnapshots(KvSequence* sequence, const std::vector<StateVersion>& made);
  // margin: this many of the last tokens will be computed again, so what their windows see is needed.
  KnownPrefix Walk(int32_t root, std::span<const int32_t> token_ids, int64_t max_tokens, const SparseView& view, int64_t margin = 0) const;
  KnownPrefix WalkForDraft(int32_t root, std::span<const int32_t> token_ids, int64_t max_tokens, KvSequence* sequence) const;
  void TakeKnownPages(KvSequence* sequence, int64_t block, int32_t node);
  void CopyDraft(const KvSequence& sequence, int64_t block, int32_t node);
  void IndexBlocks(KvSequence* sequence, std::span<const int32_t> token_ids);
  void Unindex(KvSequence* sequence, int64_t num_blocks);
  void NoteMove(const KvSequence& sequence, int64_t from, int64_t to);
  void MovePin(KvSequence* sequence, int32_t node);
  void SaveUsed(const KvSequence& sequence);
  // Bytes of a page that hold K and V of layers of one group that follow each other, in the order of layers.
  struct SavedRange {
    int group;
    int32_t page_index;
    int64_t offset;
    int64_t num_bytes;
    size_t first_layer;  // among those that keep K and V
  };
  void GiveBackGroup(KvSequence* sequence, size_t group, int64_t num_blocks);
  int64_t NumBlocks(int64_t num_tokens) const { return (num_tokens + groups_.block_size() - 1) / groups_.block_size(); }

  KvGroups groups_;
  BlockPool pool_;
  std::unique_ptr<StatePool> states_;
  std::unique_ptr<KeyBounds> bounds_;
  int64_t snapshot_interval_ = 0;
  std::unique_ptr<PrefixTree> prefix_tree_;
  std::function<void(int32_t)> save_;  // empty: blocks do not outlive the process
  std::string identity_, label_;
  std::vector<SavedRange> saved_ranges_;
  std::vector<int> saved_groups_;  // of each layer that keeps K and V
  std::function<bool()> reclaimer_;
  CallObserver* observer_ = nullptr;
  std::unordered_set<const KvSequence*> sequences_;
  bool notes_events_ = false;
  std::vector<PageEvent> events_;
  int64_t num_copies_on_write_ = 0;
  int64_t num_window_blocks_returned_ = 0;
  double copy_seconds_per_page_ = 0;
};

}  // namespace llmi

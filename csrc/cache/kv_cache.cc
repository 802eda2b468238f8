#include "cache/kv_cache.h"

#include <algorithm>
#include <functional>
#include <unordered_map>
#include <utility>

#include "core/errors.h"
#include "core/system_limits.h"
#include "kernels/ops/kv_copy.h"

namespace llmi {

namespace {

// A sequence whose drafter may start cold computes at most this many known blocks again to have all that it keeps.
constexpr int64_t kMostRecomputedForDraft = 4;

// The pages that are set aside for what the sequence's owner keeps of num_tokens tokens.
int64_t NumSidePages(const KvSequence& sequence, int64_t num_tokens, int64_t page_bytes) {
  return (num_tokens * sequence.side_bytes + page_bytes - 1) / page_bytes;
}

}  // namespace

KvCache::KvCache(KvGroups groups, int64_t num_pages, Device* device, const StateSizes& states, bool has_arena)
    : groups_(std::move(groups)), pool_(num_pages, groups_.held_page_bytes(), device, has_arena) {
  if (states.slot_bytes > 0) states_ = std::make_unique<StatePool>(states, device);
}

void KvCache::MakeBounds() {
  if (bounds_ != nullptr) return;
  const uint64_t num_bytes = KeyBounds::NumBytes(groups_, pool_.num_pages());
  const uint64_t available = AvailableMemoryBytes();
  if (num_bytes > available) {
    throw Error::OutOfMemory("sparse_attention: the bounds of all keys of the cache need " + std::to_string(num_bytes) + " bytes, and " +
                                 std::to_string(available) + " are free: lower kv_cache_memory_bytes",
                             num_bytes, available, Fault::kRequest);
  }
  bounds_ = std::make_unique<KeyBounds>(groups_, &pool_);
}

void KvCache::ForgetBounds(std::span<const std::vector<AttentionSegment>> segments) {
  const int64_t block_size = groups_.block_size();
  for (size_t g = 0; g < segments.size(); ++g) {
    const int64_t per_block = groups_.groups()[g].pages_per_block;
    for (const AttentionSegment& segment : segments[g]) {
      if (!segment.view.picks()) continue;
      const int64_t end = NumBlocks(segment.base_len + segment.num_rows);
      for (int64_t block = segment.base_len / block_size; block < end; ++block) {
        const int64_t first = std::max<int64_t>(0, segment.base_len - block * block_size) / kSlotsPerTile;
        for (int64_t i = block * per_block; i < (block + 1) * per_block; ++i) bounds_->Forget(segment.block_table[i], first);
      }
    }
  }
}

void KvCache::Init(KvSequence* sequence) {
  if (observer_ != nullptr) observer_->OnInit(*sequence);
  sequence->num_tokens = 0;
  sequence->tables.assign(groups_.groups().size(), {});
  sequence->num_returned.assign(groups_.groups().size(), 0);
  sequence->prefix_node = PrefixTree::kNone;
  sequence->num_indexed = 0;
  sequence->draft = {sequence->draft.use};
  sequences_.insert(sequence);
}

void KvCache::Fork(const KvSequence& parent, KvSequence* child) {
  if (observer_ != nullptr) observer_->OnFork(parent, *child);
  *child = parent;
  child->side_bytes = 0;
  child->side_pages.clear();
  if (states_ != nullptr) states_->Fork(parent.state, &child->state);
  for (const std::vector<int32_t>& table : child->tables) {
    for (int32_t page : table) {
      if (page >= 0) pool_.AddReference(page);
    }
  }
  if (child->prefix_node != PrefixTree::kNone) prefix_tree_->Pin(child->prefix_node);
  sequences_.insert(child);
}

void KvCache::Free(KvSequence* sequence) {
  if (observer_ != nullptr) observer_->OnFree(*sequence);
  if (sequence->prefix_node != PrefixTree::kNone) prefix_tree_->Unpin(sequence->prefix_node);
  sequence->prefix_node = PrefixTree::kNone;
  sequence->num_indexed = 0;
  for (std::vector<int32_t>& table : sequence->tables) {
    for (int32_t page : table) {
      if (page >= 0) pool_.Release(page);
    }
    table.clear();
  }
  for (int32_t page : std::exchange(sequence->side_pages, {})) pool_.Release(page);
  if (states_ != nullptr) states_->Free(&sequence->state);
  std::fill(sequence->num_returned.begin(), sequence->num_returned.end(), 0);
  sequence->num_tokens = 0;
  sequence->draft = {sequence->draft.use};
  sequences_.erase(sequence);
}

int64_t KvCache::PagesNeeded(const KvSequence& sequence, int64_t num_new) const {
  const int64_t side_pages = NumSidePages(sequence, sequence.num_tokens + num_new, groups_.page_bytes());
  int64_t pages = std::max<int64_t>(0, side_pages - static_cast<int64_t>(sequence.side_pages.size()));
  const int64_t first_written = sequence.num_tokens / groups_.block_size();
  const int64_t num_blocks = NumBlocks(sequence.num_tokens + num_new);
  for (size_t g = 0; g < sequence.tables.size(); ++g) {
    const std::vector<int32_t>& table = sequence.tables[g];
    const int64_t per_block = groups_.groups()[g].pages_per_block;
    const int64_t have = static_cast<int64_t>(table.size()) / per_block;
    pages += std::max<int64_t>(0, num_blocks - have) * per_block;
    for (int64_t i = first_written * per_block; i < std::min(have, num_blocks) * per_block; ++i) {
      if (pool_.references(table[static_cast<size_t>(i)]) > 1) ++pages;
    }
  }
  return pages;
}

uint64_t KvCache::BytesNeeded(const KvSequence& sequence, int64_t num_new, int64_t num_drafted) const {
  int64_t bytes = PagesNeeded(sequence, num_new) * groups_.page_bytes();
  if (states_ != nullptr) bytes += states_->BytesNeeded(sequence.state, {sequence.num_tokens, num_new, num_drafted});
  return static_cast<uint64_t>(bytes);
}

bool KvCache::TryReserve(KvSequence* sequence, int64_t num_new, Reclaim reclaim, int64_t num_drafted) {
  const Unobserved calls(this);
  const bool reserved = TryReserveSlots(sequence, num_new, reclaim, num_drafted);
  if (calls.observer() != nullptr) calls.observer()->OnReserve(*sequence, num_new, reclaim == Reclaim::kCacheOnly, num_drafted, reserved);
  return reserved;
}

bool KvCache::TryReserveSlots(KvSequence* sequence, int64_t num_new, Reclaim reclaim, int64_t num_drafted) {
  const StatePool::Step step = {sequence->num_tokens, num_new, num_drafted};
  // Freeing a block may end its sharing with this sequence, so the pages needed are counted again each time.
  if (!MakeRoom([&] { return PagesNeeded(*sequence, num_new); }, reclaim)) return false;
  if (states_ != nullptr && num_new > 0) {  // without rows no step runs for it
    if (!MakeStateRoom(sequence->state, step, reclaim)) return false;
    PlanStates(sequence, step);
  }
  const int64_t first_written = sequence->num_tokens / groups_.block_size();
  const int64_t num_blocks = NumBlocks(sequence->num_tokens + num_new);
  for (size_t g = 0; g < sequence->tables.size(); ++g) {
    std::vector<int32_t>& table = sequence->tables[g];
    const int64_t per_block = groups_.groups()[g].pages_per_block;
    for (int64_t i = first_written * per_block; i < std::min<int64_t>(static_cast<int64_t>(table.size()), num_blocks * per_block); ++i) {
      int32_t& page = table[static_cast<size_t>(i)];
      if (pool_.references(page) <= 1) continue;
      const int32_t shared = page;
      page = pool_.CopyOnWrite(shared);
      if (notes_events_) events_.push_back({-1, 0, shared, page, 0, 0});
      ++num_copies_on_write_;
    }
    while (static_cast<int64_t>(table.size()) < num_blocks * per_block) table.push_back(pool_.Allocate());
  }
  const int64_t side_pages = NumSidePages(*sequence, sequence->num_tokens + num_new, groups_.page_bytes());
  while (static_cast<int64_t>(sequence->side_pages.size()) < side_pages) sequence->side_pages.push_back(pool_.Allocate());
  return true;
}

bool KvCache::MakeStateRoom(const SequenceState& state, const StatePool::Step& step, Reclaim reclaim) {
  while (states_->LacksSlots(state)) {
    if (prefix_tree_ != nullptr && prefix_tree_->EvictState()) continue;
    if (!Reclaims(reclaim)) return false;
  }
  while (states_->LacksChunks(state, step)) {
    if (!Reclaims(reclaim)) return false;
  }
  return true;
}

// Takes what the step needs, and slots for the versions that are to be kept of it, as far as there are any: the latest are worth most.
void KvCache::PlanStates(KvSequence* sequence, const StatePool::Step& step) {
  SequenceState& state = sequence->state;
  states_->Plan(&state, step);
  std::vector<int64_t> wanted;
  const auto want = [&](int64_t len) {
    if (len > state.len && len <= step.end()) wanted.push_back(len);
  };
  if (sequence->prefix_node != PrefixTree::kNone) {
    want(state.snapshot_at);
    want(state.shared_until);
    if (snapshot_interval_ > 0) {
      for (int64_t len = (state.len / snapshot_interval_ + 1) * snapshot_interval_; len <= step.end(); len += snapshot_interval_) want(len);
    }
  }
  if (state.goes_back) {
    const int64_t last = step.end() / kVersionTokens * kVersionTokens;
    want(last - kVersionTokens);
    want(last);
  }
  std::sort(wanted.begin(), wanted.end(), std::greater<>());
  wanted.erase(std::unique(wanted.begin(), wanted.end()), wanted.end());
  for (const int64_t len : wanted) {
    const bool has_room = states_->slots().num_free() > 0 || (prefix_tree_ != nullptr && prefix_tree_->EvictState());
    if (!has_room || states_->slots().num_free() == 0) break;
    states_->AddCapture(&state, len);
  }
  std::reverse(state.captures.begin(), state.captures.end());
}

// Gives the prefix tree the versions at the ends of the sequence's blocks, and drops the others. The caller's references go with them.
void KvCache::KeepSnapshots(KvSequence* sequence, const std::vector<StateVersion>& made) {
  const int64_t block_size = groups_.block_size();
  for (const StateVersion& version : made) {
    const bool is_wanted = version.len == sequence->state.snapshot_at || version.len == sequence->state.shared_until ||
                           (snapshot_interval_ > 0 && version.len % snapshot_interval_ == 0);
    int64_t num_blocks = sequence->num_indexed;
    if (is_wanted && sequence->prefix_node != PrefixTree::kNone && version.len % block_size == 0 &&
        version.len <= num_blocks * block_size) {
      int32_t node = sequence->prefix_node;
      for (; num_blocks * block_size > version.len; --num_blocks) node = prefix_tree_->Parent(node);
      if (prefix_tree_->state(node) < 0) prefix_tree_->SetState(node, version.slot);
    }
    states_->slots().Release(version.slot);
  }
}

void KvCache::Commit(KvSequence* sequence, int64_t num_new, std::span<const int32_t> token_ids) {
  if (observer_ != nullptr) observer_->OnCommit(*sequence, num_new, token_ids);
  CheckInternal(sequences_.contains(sequence), "tokens of a sequence that holds no cache");
  sequence->num_tokens += num_new;
  std::vector<StateVersion> made;
  if (states_ != nullptr) made = states_->Finish(&sequence->state, sequence->num_tokens, num_new);
  if (!token_ids.empty()) IndexBlocks(sequence, token_ids);
  KeepSnapshots(sequence, made);
  for (size_t g = 0; g < sequence->tables.size(); ++g) {
    const KvGroup& group = groups_.groups()[g];
    const int64_t num_hidden = groups_.FirstVisibleBlock(group, sequence->num_tokens, sequence->view);
    const int64_t num_kept = std::max(sequence->num_returned[g], groups_.NumSinkBlocks(sequence->view));
    num_window_blocks_returned_ += std::max<int64_t>(0, num_hidden - num_kept);
    GiveBackGroup(sequence, g, num_hidden);
  }
}

// The first num_blocks blocks of a group go back to the pool, as far as they have not, but for those of sinks.
void KvCache::GiveBackGroup(KvSequence* sequence, size_t group, int64_t num_blocks) {
  const int64_t per_block = groups_.groups()[group].pages_per_block;
  for (int64_t& block = sequence->num_returned[group]; block < num_blocks; ++block) {
    if (block < groups_.NumSinkBlocks(sequence->view)) continue;
    for (int64_t i = block * per_block; i < (block + 1) * per_block; ++i) {
      int32_t& page = sequence->tables[group][static_cast<size_t>(i)];
      pool_.Release(page);
      page = -1;
    }
  }
}

bool KvCache::TryRollback(KvSequence* sequence, int64_t num_tokens) {
  CheckArgument(num_tokens >= 0 && num_tokens <= sequence->num_tokens, "rollback: more tokens than the sequence has");
  const int64_t remaining = sequence->num_tokens - num_tokens;
  for (size_t g = 0; g < sequence->tables.size(); ++g) {
    const int64_t first = groups_.FirstVisibleBlock(groups_.groups()[g], remaining, sequence->view);
    if (std::max(first, groups_.NumSinkBlocks(sequence->view)) < sequence->num_returned[g]) return false;
  }
  if (states_ != nullptr && !states_->TryRollback(&sequence->state, remaining)) return false;
  const Unobserved calls(this);
  if (calls.observer() != nullptr) calls.observer()->OnRollback(*sequence, num_tokens);
  Unindex(sequence, remaining / groups_.block_size());
  sequence->num_tokens = remaining;
  sequence->draft.end = std::min(sequence->draft.end, std::max<int64_t>(1, remaining));
  sequence->draft.first = std::min(sequence->draft.first, sequence->draft.end);
  Trim(sequence);
  return true;
}

void KvCache::MoveSlot(const KvSequence& sequence, int64_t from, int64_t to) {
  if (from == to) return;
  if (states_ != nullptr) {
    const StatePool::LogPlace old = StatePool::PlaceOf(sequence.state, from), next = StatePool::PlaceOf(sequence.state, to);
    states_->CopyRow(old, next);
    if (notes_events_) events_.push_back({kLogEvent, 0, old.chunk, next.chunk, old.row, next.row});
  }
  if (notes_events_) NoteMove(sequence, from, to);
  for (size_t g = 0; g < groups_.groups().size(); ++g) {
    for (int layer : groups_.groups()[g].layers) KvCopySlot({.device = pool_.device()}, View(layer), sequence.tables[g].data(), from, to);
  }
}

void KvCache::Trim(KvSequence* sequence) {
  if (observer_ != nullptr) observer_->OnTrim(*sequence);
  if (states_ != nullptr) states_->Trim(&sequence->state, sequence->num_tokens);
  for (size_t g = 0; g < sequence->tables.size(); ++g) {
    std::vector<int32_t>& table = sequence->tables[g];
    const int64_t keep = NumBlocks(sequence->num_tokens) * groups_.groups()[g].pages_per_block;
    while (static_cast<int64_t>(table.size()) > keep) {
      if (table.back() >= 0) pool_.Release(table.back());
      table.pop_back();
    }
  }
  sequence->draft.end = std::min(sequence->draft.end, std::max<int64_t>(1, NumBlocks(sequence->num_tokens) * groups_.block_size()));
  const int64_t side_pages = NumSidePages(*sequence, sequence->num_tokens, groups_.page_bytes());
  while (static_cast<int64_t>(sequence->side_pages.size()) > side_pages) {
    pool_.Release(sequence->side_pages.back());
    sequence->side_pages.pop_back();
  }
}

void KvCache::EnablePrefixCache(uint64_t hash_key) {
  prefix_tree_ = std::make_unique<PrefixTree>(groups_.block_size(), groups_.pages_per_block(), hash_key, &pool_);
  if (states_ != nullptr) prefix_tree_->HoldStates(&states_->slots());
}

KvCache::KnownPrefix KvCache::Walk(int32_t root, std::span<const int32_t> token_ids, int64_t max_tokens, const SparseView& view,
                                   int64_t margin) const {
  const int64_t block_size = groups_.block_size();
  token_ids = token_ids.first(static_cast<size_t>(std::clamp<int64_t>(max_tokens, 0, static_cast<int64_t>(token_ids.size()))));
  std::vector<int32_t> path = {root};
  const auto rest = [&] { return token_ids.subspan((path.size() - 1) * static_cast<size_t>(block_size)); };
  while (static_cast<int64_t>(rest().size()) >= block_size) {
    const int32_t child = prefix_tree_->Find(path.back(), rest().data());
    if (child == PrefixTree::kNone) break;
    path.push_back(child);
  }
  // A beginning is usable if each group has all blocks that its window sees, and those of sinks.
  const auto usable = [&](int64_t num_blocks) {
    int64_t first_page = 0;
    for (const KvGroup& group : groups_.groups()) {
      const int64_t first = groups_.FirstVisibleBlock(group, num_blocks * block_size - margin, view);
      for (int64_t block = 0; block < num_blocks; ++block) {
        if (block < first && block >= groups_.NumSinkBlocks(view)) continue;
        for (int64_t i = 0; i < group.pages_per_block; ++i) {
          if (prefix_tree_->page(path[static_cast<size_t>(block + 1)], first_page + i) < 0) return false;
        }
      }
      first_page += group.pages_per_block;
    }
    return true;
  };
  // And with states, if it ends where the cache has one: a state serves no other length.
  const auto num_known = static_cast<int64_t>(path.size() - 1) * block_size;
  const auto lacks_state = [&] { return states_ != nullptr && prefix_tree_->state(path.back()) < 0; };
  while (path.size() > 1 && (lacks_state() || !usable(static_cast<int64_t>(path.size()) - 1))) path.pop_back();
  if (states_ != nullptr) return {path, static_cast<int64_t>(path.size() - 1) * block_size, num_known};
  auto num_tokens = static_cast<int64_t>(token_ids.size() - rest().size());
  const auto [node, num_partial] =
      prefix_tree_->FindBeginning(path.back(), rest().first(std::min(rest().size(), static_cast<size_t>(block_size - 1))));
  if (node != PrefixTree::kNone && prefix_tree_->HasAllPages(node)) {
    path.push_back(node);
    num_tokens += num_partial;
  }
  return {path, num_tokens};
}

// The beginning that serves a sequence with a drafter, and in sequence->draft the slots that hold what the drafter keeps.
KvCache::KnownPrefix KvCache::WalkForDraft(int32_t root, std::span<const int32_t> token_ids, int64_t max_tokens,
                                           KvSequence* sequence) const {
  const int64_t block_size = groups_.block_size();
  const KnownPrefix longest = Walk(root, token_ids, max_tokens, sequence->view, 1);
  DraftSlots* draft = &sequence->draft;
  const auto drafted = [&](const KnownPrefix& known) {
    const auto first_without =
        std::find_if(known.path.begin() + 1, known.path.end(), [&](int32_t node) { return !prefix_tree_->is_drafted(node); });
    return first_without == known.path.end() ? known.num_tokens : (first_without - known.path.begin() - 1) * block_size;
  };
  KnownPrefix known = longest;
  for (int64_t most = drafted(known); most < known.num_tokens; most = drafted(known))
    known = Walk(root, token_ids, most, sequence->view, 1);
  if (draft->use == DraftSlots::Use::kMayStartCold && longest.num_tokens - known.num_tokens > kMostRecomputedForDraft * block_size) {
    draft->first = draft->end = std::max<int64_t>(1, longest.num_tokens);
    return longest;
  }
  draft->end = std::max<int64_t>(1, known.num_tokens);
  return known;
}

int64_t KvCache::MatchPrefix(std::span<const int32_t> token_ids, int64_t max_tokens, const std::string& salt,
                             const SparseView& view) const {
  const int32_t root = prefix_tree_ == nullptr ? PrefixTree::kNone : prefix_tree_->FindRoot(salt);
  return root == PrefixTree::kNone ? 0 : Walk(root, token_ids, max_tokens, view).num_tokens;
}

int64_t KvCache::AttachPrefix(KvSequence* sequence, std::span<const int32_t> token_ids, int64_t max_tokens, const std::string& salt) {
  if (observer_ != nullptr) observer_->OnOther();
  if (prefix_tree_ == nullptr) return 0;
  const bool drafts = groups_.has_draft() && sequence->draft.use != DraftSlots::Use::kNone;
  // A drafter needs a token of the beginning computed again. No state ends there, so it starts behind the first token that is computed.
  const bool goes_back = drafts && states_ == nullptr;
  if (drafts && states_ != nullptr && sequence->draft.use != DraftSlots::Use::kMayStartCold) max_tokens = 0;
  const int32_t root = prefix_tree_->Root(salt);
  const KnownPrefix known =
      goes_back ? WalkForDraft(root, token_ids, max_tokens, sequence) : Walk(root, token_ids, max_tokens, sequence->view);
  sequence->num_tokens = std::max<int64_t>(0, known.num_tokens - (goes_back ? 1 : 0));
  if (drafts && states_ != nullptr) sequence->draft.end = known.num_tokens + 1;
  if (drafts && states_ != nullptr && known.num_tokens > 0) sequence->draft.first = sequence->draft.end;
  const int64_t num_blocks = NumBlocks(known.num_tokens);
  int64_t first_page = 0;
  for (size_t g = 0; g < groups_.groups().size(); ++g) {
    const KvGroup& group = groups_.groups()[g];
    const int64_t first = groups_.FirstVisibleBlock(group, sequence->num_tokens, sequence->view);
    sequence->num_returned[g] = std::min(first, num_blocks);
    for (int64_t block = 0; block < num_blocks; ++block) {
      for (int64_t i = 0; i < group.pages_per_block; ++i) {
        const int32_t page =
            IsReturned(*sequence, g, block) ? -1 : prefix_tree_->page(known.path[static_cast<size_t>(block + 1)], first_page + i);
        if (page >= 0) pool_.AddReference(page);
        sequence->tables[g].push_back(page);
      }
    }
    first_page += group.pages_per_block;
  }
  sequence->num_indexed = sequence->num_tokens / groups_.block_size();
  sequence->prefix_node = known.path[static_cast<size_t>(sequence->num_indexed)];
  prefix_tree_->Pin(sequence->prefix_node);
  if (save_) SaveUsed(*sequence);
  SequenceState& state = sequence->state;
  state.shared_until = known.num_known;
  if (states_ != nullptr && sequence->num_tokens > 0) {
    prefix_tree_->UseState(sequence->prefix_node);
    state.slot = prefix_tree_->state(sequence->prefix_node);
    states_->slots().AddReference(state.slot);
    state.len = state.log_begin = sequence->num_tokens;
  }
  return sequence->num_tokens;
}

void KvCache::IndexBlocks(KvSequence* sequence, std::span<const int32_t> token_ids) {
  if (sequence->prefix_node == PrefixTree::kNone) return;
  const int64_t num_full = sequence->num_tokens / groups_.block_size();
  std::vector<int32_t> pages;
  for (int64_t& block = sequence->num_indexed; block < num_full; ++block) {
    const int32_t* tokens = token_ids.data() + block * groups_.block_size();
    pages.clear();
    for (size_t g = 0; g < sequence->tables.size(); ++g) {
      const int64_t per_block = groups_.groups()[g].pages_per_block;
      const auto begin = sequence->tables[g].begin() + block * per_block;
      pages.insert(pages.end(), begin, begin + per_block);
    }
    int32_t node = prefix_tree_->Find(sequence->prefix_node, tokens);
    if (node == PrefixTree::kNone) {
      node = prefix_tree_->Insert(sequence->prefix_node, tokens, pages.data());
    } else {
      TakeKnownPages(sequence, block, node);
    }
    MovePin(sequence, node);
  }
}

// The sequence takes the pages of a node that holds the tokens of this block, and gives its own to a node that lacks some.
void KvCache::TakeKnownPages(KvSequence* sequence, int64_t block, int32_t node) {
  if (groups_.has_draft() && !prefix_tree_->is_drafted(node)) CopyDraft(*sequence, block, node);
  int64_t index = 0;
  for (size_t g = 0; g < sequence->tables.size(); ++g) {
    const int64_t per_block = groups_.groups()[g].pages_per_block;
    for (int64_t i = 0; i < per_block; ++i, ++index) {
      int32_t& own = sequence->tables[g][static_cast<size_t>(block * per_block + i)];
      const int32_t known = prefix_tree_->page(node, index);
      if (own < 0 || own == known) continue;
      if (known < 0) {
        prefix_tree_->AddPage(node, index, own);
        continue;
      }
      pool_.AddReference(known);
      pool_.Release(own);
      own = known;
    }
  }
}

// Copies what the sequence's drafter has stored in this block to the node's pages, which other sequences have computed without one. Values
// are functions of the tokens, so slots that are written twice keep their bits.
void KvCache::CopyDraft(const KvSequence& sequence, int64_t block, int32_t node) {
  const int64_t block_size = groups_.block_size();
  const int64_t begin = std::max(sequence.draft.first, block * block_size);
  const int64_t end = std::min(sequence.draft.end, (block + 1) * block_size);
  if (sequence.draft.use == DraftSlots::Use::kNone || begin >= end) return;
  const int draft_group = groups_.group_of_layer(groups_.draft_layer());
  int64_t first_page = 0;
  for (int g = 0; g < draft_group; ++g) first_page += groups_.groups()[static_cast<size_t>(g)].pages_per_block;
  const int64_t per_block = groups_.groups()[static_cast<size_t>(draft_group)].pages_per_block;
  const auto own = sequence.tables[static_cast<size_t>(draft_group)].begin() + block * per_block;
  std::vector<int32_t> pages(own, own + per_block);
  for (int64_t i = 0; i < per_block; ++i) pages.push_back(prefix_tree_->page(node, first_page + i));
  if (std::any_of(pages.begin(), pages.end(), [](int32_t page) { return page < 0; }) || pages[0] == pages[static_cast<size_t>(per_block)])
    return;
  const KvView view = View(groups_.draft_layer());
  for (int64_t slot = begin - block * block_size; slot < end - block * block_size; ++slot) {
    KvCopySlot({.device = pool_.device()}, view, pages.data(), slot, block_size + slot);
  }
}

void KvCache::CommitDraft(KvSequence* sequence, int64_t end) {
  sequence->draft.end = end;
  if (sequence->prefix_node == PrefixTree::kNone) return;
  const int64_t block_size = groups_.block_size();
  int32_t node = sequence->prefix_node;
  for (int64_t block = sequence->num_indexed - 1; block >= 0; --block, node = prefix_tree_->Parent(node)) {
    if ((block + 1) * block_size > end) continue;
    if (std::max<int64_t>(1, block * block_size) < sequence->draft.first || prefix_tree_->is_drafted(node)) return;
    prefix_tree_->SetDrafted(node, true);
  }
}

void KvCache::SkipDraft(KvSequence* sequence, int64_t first) const {
  sequence->draft.first = first;
  sequence->draft.end = first;
}

void KvCache::MovePin(KvSequence* sequence, int32_t node) {
  prefix_tree_->Pin(node);
  prefix_tree_->Unpin(sequence->prefix_node);
  sequence->prefix_node = node;
}

// Moves the sequence's pin back, so that only its first num_blocks blocks count as indexed.
void KvCache::Unindex(KvSequence* sequence, int64_t num_blocks) {
  if (sequence->prefix_node == PrefixTree::kNone || sequence->num_indexed <= num_blocks) return;
  int32_t node = sequence->prefix_node;
  for (; sequence->num_indexed > num_blocks; --sequence->num_indexed) node = prefix_tree_->Parent(node);
  MovePin(sequence, node);
}

void KvCache::ClearPrefixCache() {
  if (observer_ != nullptr) observer_->OnClear();
  if (prefix_tree_ != nullptr) prefix_tree_->Clear();
}

std::string KvCache::Audit() const {
  std::vector<int32_t> expected(static_cast<size_t>(pool_.num_pages()), 0);
  std::unordered_map<int32_t, int32_t> pins;
  for (const KvSequence* sequence : sequences_) {
    if (sequence->prefix_node != PrefixTree::kNone) ++pins[sequence->prefix_node];
    for (int32_t page : sequence->side_pages) ++expected[static_cast<size_t>(page)];
    if (sequence->num_indexed * groups_.block_size() > sequence->num_tokens) return "a sequence has indexed more than it computed";
    for (size_t g = 0; g < sequence->tables.size(); ++g) {
      const std::vector<int32_t>& table = sequence->tables[g];
      const int64_t per_block = groups_.groups()[g].pages_per_block;
      if (static_cast<int64_t>(table.size()) < NumBlocks(sequence->num_tokens) * per_block) return "a table is shorter than its sequence";
      for (size_t i = 0; i < table.size(); ++i) {
        const bool returned = IsReturned(*sequence, g, static_cast<int64_t>(i) / per_block);
        if (returned != (table[i] < 0)) return "a table entry is missing, or was not given back";
        if (table[i] >= 0) ++expected[static_cast<size_t>(table[i])];
      }
    }
  }
  if (prefix_tree_ != nullptr) {
    std::string fault = prefix_tree_->Audit(pins, &expected);
    if (!fault.empty()) return fault;
  }
  if (states_ != nullptr) {
    std::vector<int32_t> slots(static_cast<size_t>(states_->sizes().num_slots), 0);
    std::vector<int32_t> chunks(static_cast<size_t>(states_->sizes().num_chunks), 0);
    for (const KvSequence* sequence : sequences_) {
      if (sequence->state.len > sequence->num_tokens) return "a state is of more tokens than its sequence has";
      states_->Count(sequence->state, &slots, &chunks);
    }
    if (prefix_tree_ != nullptr) prefix_tree_->CountStates(&slots);
    for (std::string fault : {states_->slots().Audit(slots), states_->chunks().Audit(chunks)}) {
      if (!fault.empty()) return "states: " + fault;
    }
  }
  return pool_.Audit(expected);
}

double KvCache::WastedShare() const {
  int64_t slots = 0;
  int64_t empty = 0;
  for (const KvSequence* sequence : sequences_) {
    for (size_t g = 0; g < sequence->tables.size(); ++g) {
      const int64_t per_block = groups_.groups()[g].pages_per_block;
      const int64_t blocks = static_cast<int64_t>(sequence->tables[g].size()) / per_block;
      slots += (blocks - NumReturned(*sequence, g)) * groups_.block_size() * per_block;
      empty += (blocks * groups_.block_size() - sequence->num_tokens) * per_block;
    }
  }
  return slots == 0 ? 0.0 : static_cast<double>(empty) / static_cast<double>(slots);
}

}  // namespace llmi

#include "cache/kv_cache.h"

#include <algorithm>
#include <utility>

#include "core/errors.h"
#include "kernels/kv_copy.h"

namespace llmi {

KvCache::KvCache(KvGroups groups, int64_t num_pages) : groups_(std::move(groups)), pool_(num_pages, groups_.page_bytes()) {}

void KvCache::Init(KvSequence* sequence) {
  sequence->num_tokens = 0;
  sequence->tables.assign(groups_.groups().size(), {});
  sequence->num_returned.assign(groups_.groups().size(), 0);
  sequences_.insert(sequence);
}

void KvCache::Fork(const KvSequence& parent, KvSequence* child) {
  *child = parent;
  for (const std::vector<int32_t>& table : child->tables) {
    for (int32_t page : table) {
      if (page >= 0) pool_.AddReference(page);
    }
  }
  sequences_.insert(child);
}

void KvCache::Free(KvSequence* sequence) {
  for (std::vector<int32_t>& table : sequence->tables) {
    for (int32_t page : table) {
      if (page >= 0) pool_.Release(page);
    }
    table.clear();
  }
  std::fill(sequence->num_returned.begin(), sequence->num_returned.end(), 0);
  sequence->num_tokens = 0;
  sequences_.erase(sequence);
}

int64_t KvCache::PagesNeeded(const KvSequence& sequence, int64_t num_new) const {
  int64_t pages = 0;
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

bool KvCache::TryReserve(KvSequence* sequence, int64_t num_new, Reclaim reclaim) {
  // What is reclaimed may have shared blocks with this sequence: the need is counted anew each time.
  while (PagesNeeded(*sequence, num_new) > pool_.num_free()) {
    if (reclaim == Reclaim::kNever || !reclaimer_ || !reclaimer_()) return false;
  }
  const int64_t first_written = sequence->num_tokens / groups_.block_size();
  const int64_t num_blocks = NumBlocks(sequence->num_tokens + num_new);
  for (size_t g = 0; g < sequence->tables.size(); ++g) {
    std::vector<int32_t>& table = sequence->tables[g];
    const int64_t per_block = groups_.groups()[g].pages_per_block;
    for (int64_t i = first_written * per_block; i < std::min<int64_t>(static_cast<int64_t>(table.size()), num_blocks * per_block); ++i) {
      int32_t& page = table[static_cast<size_t>(i)];
      if (pool_.references(page) <= 1) continue;
      page = pool_.CopyOnWrite(page);
      ++num_copies_on_write_;
    }
    while (static_cast<int64_t>(table.size()) < num_blocks * per_block) table.push_back(pool_.Allocate());
  }
  return true;
}

void KvCache::Commit(KvSequence* sequence, int64_t num_new) {
  sequence->num_tokens += num_new;
  for (size_t g = 0; g < sequence->tables.size(); ++g) {
    const KvGroup& group = groups_.groups()[g];
    if (group.window == 0) continue;
    // The next token, at position num_tokens, sees positions from num_tokens + 1 - window on.
    const int64_t num_hidden = std::max<int64_t>(0, sequence->num_tokens + 1 - group.window) / groups_.block_size();
    for (int64_t& block = sequence->num_returned[g]; block < num_hidden; ++block) {
      for (int64_t i = block * group.pages_per_block; i < (block + 1) * group.pages_per_block; ++i) {
        int32_t& page = sequence->tables[g][static_cast<size_t>(i)];
        pool_.Release(page);
        page = -1;
      }
      ++num_window_blocks_returned_;
    }
  }
}

bool KvCache::TryRollback(KvSequence* sequence, int64_t num_tokens) {
  CheckArgument(num_tokens >= 0 && num_tokens <= sequence->num_tokens, "rollback: more tokens than the sequence has");
  const int64_t remaining = sequence->num_tokens - num_tokens;
  for (size_t g = 0; g < sequence->tables.size(); ++g) {
    const int64_t window = groups_.groups()[g].window;
    if (window == 0) continue;
    const int64_t first_visible = std::max<int64_t>(0, remaining + 1 - window) / groups_.block_size();
    if (remaining > 0 && first_visible < sequence->num_returned[g]) return false;
    if (remaining == 0 && sequence->num_returned[g] > 0) return false;
  }
  sequence->num_tokens = remaining;
  Trim(sequence);
  return true;
}

void KvCache::MoveSlot(const KvSequence& sequence, int64_t from, int64_t to) {
  if (from == to) return;
  for (size_t g = 0; g < groups_.groups().size(); ++g) {
    for (int layer : groups_.groups()[g].layers) KvCopySlot(View(layer), sequence.tables[g].data(), from, to);
  }
}

void KvCache::Trim(KvSequence* sequence) {
  for (size_t g = 0; g < sequence->tables.size(); ++g) {
    std::vector<int32_t>& table = sequence->tables[g];
    const int64_t keep = NumBlocks(sequence->num_tokens) * groups_.groups()[g].pages_per_block;
    while (static_cast<int64_t>(table.size()) > keep) {
      if (table.back() >= 0) pool_.Release(table.back());
      table.pop_back();
    }
  }
}

std::string KvCache::Audit() const {
  std::vector<int32_t> expected(static_cast<size_t>(pool_.num_pages()), 0);
  for (const KvSequence* sequence : sequences_) {
    for (size_t g = 0; g < sequence->tables.size(); ++g) {
      const std::vector<int32_t>& table = sequence->tables[g];
      const int64_t per_block = groups_.groups()[g].pages_per_block;
      if (static_cast<int64_t>(table.size()) < NumBlocks(sequence->num_tokens) * per_block) return "a table is shorter than its sequence";
      for (size_t i = 0; i < table.size(); ++i) {
        const bool returned = static_cast<int64_t>(i) < sequence->num_returned[g] * per_block;
        if (returned != (table[i] < 0)) return "a table entry is missing, or was not given back";
        if (table[i] >= 0) ++expected[static_cast<size_t>(table[i])];
      }
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
      slots += (blocks - sequence->num_returned[g]) * groups_.block_size() * per_block;
      empty += (blocks * groups_.block_size() - sequence->num_tokens) * per_block;
    }
  }
  return slots == 0 ? 0.0 : static_cast<double>(empty) / static_cast<double>(slots);
}

}  // namespace llmi

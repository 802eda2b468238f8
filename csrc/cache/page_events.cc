// What happens to a cache's pages between two forward passes, and the same done to the pages of another process.
#include "cache/kv_cache.h"
#include "kernels/dispatch/transfer.h"
#include "kernels/ops/kv_copy.h"

namespace llmi {

void KvCache::NoteMove(const KvSequence& sequence, int64_t from, int64_t to) {
  const int64_t block_size = groups_.block_size();
  for (size_t g = 0; g < groups_.groups().size(); ++g) {
    const std::vector<int32_t>& table = sequence.tables[g];
    const int32_t per_block = groups_.groups()[g].pages_per_block;
    for (int32_t i = 0; i < per_block; ++i) {
      const auto page = [&](int64_t slot) { return table[static_cast<size_t>(slot / block_size * per_block + i)]; };
      events_.push_back({static_cast<int32_t>(g), i, page(from), page(to), static_cast<int32_t>(from % block_size),
                         static_cast<int32_t>(to % block_size)});
    }
  }
}

bool KvCache::Knows(const PageEvent& event) const {
  const auto in_range = [](int64_t value, int64_t end) { return value >= 0 && value < end; };
  if (event.group == kLogEvent) {
    return states_ != nullptr && states_->Has({event.from_page, event.from_slot}) && states_->Has({event.to_page, event.to_slot});
  }
  if (!in_range(event.from_page, pool_.num_pages()) || !in_range(event.to_page, pool_.num_pages())) return false;
  if (event.group == kPageEvent) return true;
  if (!in_range(event.group, static_cast<int64_t>(groups_.groups().size()))) return false;
  return in_range(event.index, groups_.groups()[static_cast<size_t>(event.group)].pages_per_block) &&
         in_range(event.from_slot, groups_.block_size()) && in_range(event.to_slot, groups_.block_size());
}

void KvCache::Repeat(const PageEvent& event) {
  if (event.group == kLogEvent) return states_->CopyRow({event.from_page, event.from_slot}, {event.to_page, event.to_slot});
  const int64_t page_bytes = pool_.page_bytes();
  if (event.group == kPageEvent) {
    return CopyThere({.device = pool_.device()}, pool_.arena() + event.to_page * page_bytes, pool_.arena() + event.from_page * page_bytes,
                     static_cast<size_t>(page_bytes));
  }
  const KvGroup& group = groups_.groups()[static_cast<size_t>(event.group)];
  std::vector<int32_t> pages(static_cast<size_t>(2 * group.pages_per_block), -1);
  pages[static_cast<size_t>(event.index)] = event.from_page;
  pages[static_cast<size_t>(group.pages_per_block + event.index)] = event.to_page;
  for (const int layer : group.layers) {
    const KvView view = View(layer);
    if (view.page_index != event.index || view.num_kv_heads == 0) continue;
    KvCopySlot({.device = pool_.device()}, view, pages.data(), event.from_slot, groups_.block_size() + event.to_slot);
  }
}

}  // namespace llmi

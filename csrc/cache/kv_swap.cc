// Copies a preempted sequence's blocks from a device's cache to the host and back.
#include <chrono>

#include "cache/kv_cache.h"
#include "kernels/dispatch/transfer.h"

namespace llmi {

int64_t KvCache::NumCommittedPages(const KvSequence& sequence) const {
  int64_t pages = 0;
  for (size_t g = 0; g < sequence.tables.size(); ++g) {
    pages += (NumBlocks(sequence.num_tokens) - NumReturned(sequence, g)) * groups_.groups()[g].pages_per_block;
  }
  return pages;
}

KvHostCopy KvCache::CopyToHost(const KvSequence& sequence) {
  const auto start = std::chrono::steady_clock::now();
  KvHostCopy copy = {sequence.num_tokens, sequence.num_returned, NumCommittedPages(sequence), {}, sequence.draft};
  const int64_t num_blocks = NumBlocks(sequence.num_tokens);
  const auto page_bytes = static_cast<size_t>(pool_.page_bytes());
  copy.bytes.resize(static_cast<size_t>(copy.num_pages) * page_bytes);
  uint8_t* to = copy.bytes.data();
  for (size_t g = 0; g < sequence.tables.size(); ++g) {
    const int64_t per_block = groups_.groups()[g].pages_per_block;
    for (int64_t i = 0; i < num_blocks * per_block; ++i) {
      const int64_t page = sequence.tables[g][static_cast<size_t>(i)];
      if (page < 0) continue;
      ToHost({.device = pool_.device()}, to, pool_.arena() + page * pool_.page_bytes(), page_bytes);
      to += page_bytes;
    }
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (copy.num_pages > 0) copy_seconds_per_page_ = seconds / static_cast<double>(copy.num_pages);
  return copy;
}

bool KvCache::TryRestore(KvSequence* sequence, const KvHostCopy& copy, std::span<const int32_t> token_ids, const std::string& salt) {
  if (!MakeRoom([&] { return copy.num_pages; }, Reclaim::kAll)) return false;
  const auto page_bytes = static_cast<size_t>(pool_.page_bytes());
  const int64_t num_blocks = NumBlocks(copy.num_tokens);
  const uint8_t* from = copy.bytes.data();
  sequence->num_returned = copy.num_returned;
  for (size_t g = 0; g < sequence->tables.size(); ++g) {
    const int64_t per_block = groups_.groups()[g].pages_per_block;
    std::vector<int32_t>& table = sequence->tables[g];
    for (int64_t i = 0; i < num_blocks * per_block; ++i) {
      if (IsReturned(*sequence, g, i / per_block)) {
        table.push_back(-1);
        continue;
      }
      const int64_t page = table.emplace_back(pool_.Allocate());
      ToDevice({.device = pool_.device()}, pool_.arena() + page * pool_.page_bytes(), from, page_bytes);
      from += page_bytes;
    }
  }
  sequence->num_tokens = copy.num_tokens;
  sequence->draft = copy.draft;
  if (prefix_tree_ != nullptr && !token_ids.empty()) {
    sequence->prefix_node = prefix_tree_->Root(salt);
    prefix_tree_->Pin(sequence->prefix_node);
    IndexBlocks(sequence, token_ids);
  }
  return true;
}

}  // namespace llmi

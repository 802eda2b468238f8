#include "cache/block_pool.h"

#include <algorithm>

#include "core/errors.h"
#include "kernels/dispatch/transfer.h"

namespace llmi {

BlockPool::BlockPool(int64_t num_pages, int64_t page_bytes, Device* device, bool has_arena)
    : page_bytes_(page_bytes),
      has_arena_(has_arena),
      device_(device),
      arena_(has_arena ? static_cast<size_t>(num_pages) * static_cast<size_t>(page_bytes) : 0, "the KV cache", device) {
  CheckArgument(num_pages > 0 && num_pages < INT32_MAX, "the KV cache needs at least one page");
  references_.assign(static_cast<size_t>(num_pages), 0);
  is_cached_.assign(static_cast<size_t>(num_pages), false);
  free_.reserve(static_cast<size_t>(num_pages));
  for (int64_t page = num_pages; page-- > 0;) free_.push_back(static_cast<int32_t>(page));
}

int64_t BlockPool::num_shared() const {
  int64_t num_shared = 0;
  for (size_t page = 0; page < references_.size(); ++page) num_shared += references_[page] - (is_cached_[page] ? 1 : 0) > 1;
  return num_shared;
}

int32_t BlockPool::Allocate() {
  CheckInternal(!free_.empty(), "the block pool is empty");
  const int32_t page = free_.back();
  free_.pop_back();
  references_[static_cast<size_t>(page)] = 1;
  if (on_allocate_) on_allocate_(page);
  return page;
}

void BlockPool::AddReference(int32_t page) {
  const auto index = static_cast<size_t>(page);
  if (is_cached_[index] && references_[index] == 1) --num_cached_;
  ++references_[index];
}

void BlockPool::Cache(int32_t page) {
  CheckInternal(!is_cached_[static_cast<size_t>(page)], "a KV page was cached twice");
  AddReference(page);
  is_cached_[static_cast<size_t>(page)] = true;
}

void BlockPool::Uncache(int32_t page) {
  const auto index = static_cast<size_t>(page);
  CheckInternal(is_cached_[index], "a KV page left the prefix cache that it was not in");
  if (references_[index] == 1) --num_cached_;
  is_cached_[index] = false;
  Release(page);
}

void BlockPool::Release(int32_t page) {
  int32_t& count = references_[static_cast<size_t>(page)];
  CheckInternal(count > 0, "a free KV page was released");
  if (--count == 0) free_.push_back(page);
  if (count == 1 && is_cached_[static_cast<size_t>(page)]) ++num_cached_;
}

int32_t BlockPool::CopyOnWrite(int32_t page) {
  const int32_t copy = Allocate();
  if (has_arena_) {
    CopyThere({.device = device_}, arena_.data() + copy * page_bytes_, arena_.data() + page * page_bytes_,
              static_cast<size_t>(page_bytes_));
  }
  Release(page);
  return copy;
}

std::string BlockPool::Audit(const std::vector<int32_t>& expected) const {
  std::vector<bool> listed(references_.size(), false);
  for (int32_t page : free_) {
    const auto index = static_cast<size_t>(page);
    if (page < 0 || index >= references_.size()) return "the free list holds page " + std::to_string(page);
    if (listed[index]) return "page " + std::to_string(page) + " is free twice";
    listed[index] = true;
  }
  int64_t num_cached = 0;
  for (size_t page = 0; page < references_.size(); ++page) num_cached += is_cached_[page] && references_[page] == 1;
  if (num_cached != num_cached_)
    return "the pool counts " + std::to_string(num_cached_) + " pages as cached alone, not " + std::to_string(num_cached);
  for (size_t page = 0; page < references_.size(); ++page) {
    const int32_t wanted = page < expected.size() ? expected[page] : 0;
    if (references_[page] != wanted) {
      return "page " + std::to_string(page) + " counts " + std::to_string(references_[page]) + " references, tables hold " +
             std::to_string(wanted);
    }
    if (listed[page] != (references_[page] == 0))
      return "page " + std::to_string(page) + (listed[page] ? " is free and in use" : " is lost");
  }
  return "";
}

}  // namespace llmi

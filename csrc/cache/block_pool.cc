#include "cache/block_pool.h"

#include <algorithm>
#include <cstring>

#include "core/errors.h"

namespace llmi {

BlockPool::BlockPool(int64_t num_pages, int64_t page_bytes)
    : page_bytes_(page_bytes), arena_(static_cast<size_t>(num_pages) * static_cast<size_t>(page_bytes), "the KV cache") {
  CheckArgument(num_pages > 0 && num_pages < INT32_MAX, "the KV cache needs at least one page");
  references_.assign(static_cast<size_t>(num_pages), 0);
  free_.reserve(static_cast<size_t>(num_pages));
  for (int64_t page = num_pages; page-- > 0;) free_.push_back(static_cast<int32_t>(page));
}

int64_t BlockPool::num_shared() const {
  return std::count_if(references_.begin(), references_.end(), [](int32_t count) { return count > 1; });
}

int32_t BlockPool::Allocate() {
  CheckInternal(!free_.empty(), "the block pool is empty");
  const int32_t page = free_.back();
  free_.pop_back();
  references_[static_cast<size_t>(page)] = 1;
  return page;
}

void BlockPool::AddReference(int32_t page) { ++references_[static_cast<size_t>(page)]; }

void BlockPool::Release(int32_t page) {
  int32_t& count = references_[static_cast<size_t>(page)];
  CheckInternal(count > 0, "a free KV page was released");
  if (--count == 0) free_.push_back(page);
}

int32_t BlockPool::CopyOnWrite(int32_t page) {
  const int32_t copy = Allocate();
  std::memcpy(arena_.data() + copy * page_bytes_, arena_.data() + page * page_bytes_, static_cast<size_t>(page_bytes_));
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

// The pool of KV pages with their reference counts. It owns the arena; tables own references.
// Not thread-safe: the engine thread alone calls it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/aligned.h"
#include "kernels/dispatch/device.h"

namespace llmi {

class BlockPool {
 public:
  // device: whose memory the arena is; null: the host's.
  BlockPool(int64_t num_pages, int64_t page_bytes, Device* device);

  int64_t num_pages() const { return static_cast<int64_t>(references_.size()); }
  int64_t num_free() const { return static_cast<int64_t>(free_.size()); }
  int64_t num_shared() const;  // pages of two sequences or more
  int64_t page_bytes() const { return page_bytes_; }
  uint8_t* arena() { return arena_.data(); }
  Device* device() const { return device_; }
  int32_t references(int32_t page) const { return references_[static_cast<size_t>(page)]; }

  // A page with one reference; the caller has checked num_free().
  int32_t Allocate();
  void AddReference(int32_t page);
  void Release(int32_t page);
  // The prefix cache takes, and gives up, a reference of its own; at most one a page.
  void Cache(int32_t page);
  void Uncache(int32_t page);
  // Pages that the prefix cache alone holds.
  int64_t num_cached() const { return num_cached_; }
  // A new page with the bytes of `page`, which loses one reference.
  int32_t CopyOnWrite(int32_t page);

  // Compares the counts with `expected` (references held by all tables, by page) and the free list with the
  // counts. Empty if clean, else the first fault.
  std::string Audit(const std::vector<int32_t>& expected) const;

  // For tests of audit(): breaks one count.
  void CorruptForTest(int32_t page) { ++references_[static_cast<size_t>(page)]; }

 private:
  int64_t page_bytes_;
  Device* device_;
  AlignedBuffer arena_;
  std::vector<int32_t> references_;
  std::vector<bool> is_cached_;
  int64_t num_cached_ = 0;
  std::vector<int32_t> free_;  // last in, first out: touched memory is used again
};

}  // namespace llmi

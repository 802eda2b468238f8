// The pool of KV pages with their reference counts. It owns the arena, the memory of all pages; block tables own references to pages.
// Not thread-safe: the engine thread alone calls it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "core/aligned.h"
#include "kernels/dispatch/device.h"

namespace llmi {

class BlockPool {
 public:
  // device: the arena is allocated in its memory; null: in the host's. has_arena: false: pages are counted alone.
  BlockPool(int64_t num_pages, int64_t page_bytes, Device* device, bool has_arena = true);

  int64_t num_pages() const { return static_cast<int64_t>(references_.size()); }
  int64_t num_free() const { return static_cast<int64_t>(free_.size()); }
  int64_t num_shared() const;  // pages that two sequences or more hold
  int64_t page_bytes() const { return page_bytes_; }
  uint8_t* arena() { return arena_.data(); }
  Device* device() const { return device_; }
  int32_t references(int32_t page) const { return references_[static_cast<size_t>(page)]; }

  // Takes a free page, with one reference. The caller must have checked num_free().
  int32_t Allocate();
  void AddReference(int32_t page);
  void Release(int32_t page);
  // The prefix cache takes (gives up) its reference to a page; it has at most one to each page.
  void Cache(int32_t page);
  void Uncache(int32_t page);
  // Pages that the prefix cache alone holds.
  int64_t num_cached() const { return num_cached_; }
  // Returns a new page with the bytes of `page`; `page` loses one reference.
  int32_t CopyOnWrite(int32_t page);

  // Called with each page that is taken, whose bytes are then another's.
  void set_on_allocate(std::function<void(int32_t)> on_allocate) { on_allocate_ = std::move(on_allocate); }

  // Compares the counts with `expected` (the references that all tables hold, by page), and the free list with the counts. Returns the
  // first fault, or nothing.
  std::string Audit(const std::vector<int32_t>& expected) const;

  // For tests of Audit: breaks one count.
  void CorruptForTest(int32_t page) { ++references_[static_cast<size_t>(page)]; }

 private:
  int64_t page_bytes_;
  bool has_arena_;
  Device* device_;
  AlignedBuffer arena_;
  std::vector<int32_t> references_;
  std::vector<bool> is_cached_;
  int64_t num_cached_ = 0;
  std::function<void(int32_t)> on_allocate_;
  std::vector<int32_t> free_;  // last in, first out: memory that was already touched is used again
};

}  // namespace llmi

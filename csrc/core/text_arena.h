// Keeps copies of many short texts in a few allocations, which are freed together.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <vector>

namespace llmi {

class TextArena {
 public:
  // Returns num_bytes bytes of memory, valid as long as the arena.
  char* Allocate(size_t num_bytes) {
    constexpr size_t kBlockBytes = 1 << 18;
    if (num_bytes > left_) {
      left_ = std::max(num_bytes, kBlockBytes);
      blocks_.emplace_back(new char[left_]);
      next_ = blocks_.back().get();
    }
    char* room = next_;
    next_ += num_bytes;
    left_ -= num_bytes;
    return room;
  }

 private:
  std::vector<std::unique_ptr<char[]>> blocks_;
  char* next_ = nullptr;
  size_t left_ = 0;
};

}  // namespace llmi

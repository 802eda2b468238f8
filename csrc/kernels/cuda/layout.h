// Several arrays in one block of memory, so that one upload brings them all.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace llmi::cuda {

// Arrays that are stored one after the other, each aligned.
class Layout {
 public:
  // Adds an array and returns its offset; `from` null: Write leaves it unwritten unless Fill names its contents. Arrays are read by Write.
  template <typename T>
  size_t Place(const T* from, int64_t count) {
    constexpr size_t kAlign = 16;
    const size_t offset = (size_ + kAlign - 1) / kAlign * kAlign;
    size_ = offset + static_cast<size_t>(count) * sizeof(T);
    if (from != nullptr && count > 0) parts_.push_back({offset, reinterpret_cast<const uint8_t*>(from), size_ - offset});
    return offset;
  }
  // Bytes for a place that was reserved.
  template <typename T>
  void Fill(size_t offset, const T* from, int64_t count) {
    if (count > 0) parts_.push_back({offset, reinterpret_cast<const uint8_t*>(from), static_cast<size_t>(count) * sizeof(T)});
  }
  size_t size() const { return size_; }
  void Write(uint8_t* to) const {
    for (const Part& part : parts_) std::copy_n(part.from, part.num_bytes, to + part.offset);
  }

 private:
  struct Part {
    size_t offset;
    const uint8_t* from;
    size_t num_bytes;
  };
  std::vector<Part> parts_;
  size_t size_ = 0;
};

}  // namespace llmi::cuda

// Logits of a chunk of rows on the host: memory that is used again for each chunk.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace llmi {

class HostLogits {
 public:
  explicit HostLogits(int64_t vocab_size) : vocab_size_(vocab_size) {}
  int64_t vocab_size() const { return vocab_size_; }
  // Makes room for rows [0, num_rows). Contents stay, pointers do not.
  void Reserve(int64_t num_rows) { values_.resize(std::max(values_.size(), static_cast<size_t>(num_rows * vocab_size_))); }
  float* Row(int64_t row) { return values_.data() + row * vocab_size_; }
  const float* Row(int64_t row) const { return values_.data() + row * vocab_size_; }

 private:
  const int64_t vocab_size_;
  std::vector<float> values_;
};

}  // namespace llmi

// Logits of a chunk of rows on the host: memory that is used again for each chunk. The rows may be stored in another order than they have.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace llmi {

class HostLogits {
 public:
  explicit HostLogits(int64_t vocab_size) : vocab_size_(vocab_size) {}
  int64_t vocab_size() const { return vocab_size_; }
  // Row i is stored at place places[i], a permutation; rows past the list are at their own. Contents do not move.
  void SetPlaces(std::vector<int64_t> places) { places_ = std::move(places); }
  // Makes room for rows [0, num_rows). Contents stay, pointers do not.
  void Reserve(int64_t num_rows) { values_.resize(std::max(values_.size(), static_cast<size_t>(num_rows * vocab_size_))); }
  float* Row(int64_t row) { return values_.data() + Offset(row); }
  const float* Row(int64_t row) const { return values_.data() + Offset(row); }

 private:
  int64_t Offset(int64_t row) const {
    const auto index = static_cast<size_t>(row);
    return (index < places_.size() ? places_[index] : row) * vocab_size_;
  }

  const int64_t vocab_size_;
  std::vector<float> values_;
  std::vector<int64_t> places_;
};

}  // namespace llmi

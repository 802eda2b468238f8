// The hidden states of a sequence's tokens, and the largest cosine of other rows with them. Engine thread only.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/aligned.h"
#include "kernels/ops/context.h"

namespace llmi {

// Bytes that one row of `size` values takes: the values in fp32, and its length in fp64.
constexpr int64_t HiddenRowBytes(int64_t size) { return size * 4 + 8; }

class CosineIndex {
 public:
  int64_t size() const { return static_cast<int64_t>(lengths_.size()); }
  // row: of the next token, on the host; all rows have one size. Throws Error(kNonFiniteLogits) for NaN or infinity.
  void Add(std::span<const float> row);
  // For each of others [num_others, row size]: its largest cosine with a row that was added. A cosine is dot / |row| / |other|, 0 if either
  // is 0; the dot is summed as the linear layer of float weights sums (kernels/ops/linear.h), the squares of a length in fp64 in 16 lanes
  // (index modulo 16) folded 8, 4, 2, 1, and the rest is fp64. So its bits depend on the two rows alone.
  // context: where host code runs its ops. Throws Error(kNonFiniteLogits) for NaN or infinity.
  std::vector<double> LargestCosines(const KernelContext& context, std::span<const float> others) const;

 private:
  size_t row_size_ = 0;
  std::vector<double> lengths_;
  std::vector<AlignedBuffer> chunks_;  // of kChunkRows rows each, in tiles (kernels/layout/packed_weights.h)
};

}  // namespace llmi

// How a block cuts a span's K and V into the parts that it loads one after the other: of K some dimensions of all tiles, of V some
// dimensions of some tiles.
#pragma once

#include "kernels/cpu/reference/attention_path.h"
#include "kernels/cuda/block.h"

namespace llmi::cuda {

template <int kKeyDims, int kValueDims, int kValueTiles>
struct KvParts {
  static constexpr int kPerPass = kAttentionSpan / kSlotsPerTile / kValueTiles;  // parts of V with the same dimensions
  struct Part {
    bool is_key;
    int dim_begin;
    int num_dims;
    int tile_begin;  // of K: 0
  };

  int head_dim;

  LLMI_HD int NumKeyParts() const { return (head_dim + kKeyDims - 1) / kKeyDims; }
  LLMI_HD int NumParts() const { return NumKeyParts() + (head_dim + kValueDims - 1) / kValueDims * kPerPass; }
  LLMI_HD Part PartOf(int number) const {
    const int index = number - NumKeyParts();
    const bool is_key = index < 0;
    const int most = is_key ? kKeyDims : kValueDims;
    const int dim_begin = (is_key ? number : index / kPerPass) * most;
    const int num_dims = head_dim - dim_begin < most ? head_dim - dim_begin : most;
    return {is_key, dim_begin, num_dims, is_key ? 0 : index % kPerPass * kValueTiles};
  }
};

}  // namespace llmi::cuda

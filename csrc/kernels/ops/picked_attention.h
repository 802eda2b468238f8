// What rows see that pick blocks (SparseView::picks): the first tiles of 16 positions, the last ones, the row's own included, and between
// them, for each KV head, the num_best tiles with the largest bound_scores; of equal ones the lower. A row that has no more tiles than
// these sees all.
//
// Attention then runs over these tiles as if there were no others: spans are of 256 positions that are seen.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/layout/key_bounds.h"
#include "kernels/ops/attention.h"

namespace llmi {

// The batch with what its rows see. K and V of all rows are stored; segments that pick are chains. Computes bounds that are not known.
class PickedRows {
 public:
  // `args` and what it points to outlive this.
  PickedRows(const KernelContext& context, const AttentionArgs& args, const KeyBoundsView& bounds);
  const AttentionArgs& args() const { return args_; }

 private:
  struct Row {
    int64_t segment;
    int64_t row;    // of the batch
    int64_t begin;  // of its tiles in tiles_
    int64_t place;  // of its own segment
  };
  static void LearnBounds(const KernelContext& context, const AttentionArgs& args, const KeyBoundsView& bounds);
  void Pick(const KernelContext& context, const AttentionArgs& args, const KeyBoundsView& bounds, const Row& row, int64_t kv_head);

  AttentionArgs args_;
  std::vector<AttentionSegment> segments_;
  std::vector<int32_t> positions_;
  std::vector<int32_t> tiles_;  // of each row that picks [num_kv_heads, sinks + best]
};

}  // namespace llmi

// The positions of a span that a group of rows sees.
#pragma once

#include "kernels/cuda/attention_plan.h"
#include "kernels/cuda/span_plan.h"
#include "kernels/layout/kv_layout.h"

namespace llmi::cuda {

// Positions in a span, from its begin: those that some row of a group sees, and those that all rows see.
struct Sight {
  int begin, end;
  int all_begin, all_end;

  // Rows of a group ascend in position.
  LLMI_HD static Sight Of(const AttentionPlan& plan, const RowGroup& rows, int64_t span) {
    const int64_t first = rows.row_begin;
    const int64_t last = first + rows.num_rows - 1;
    return {Clip(AttentionFirstVisible(plan.args, first), span), Clip(plan.args.positions[last] + 1, span),
            Clip(AttentionFirstVisible(plan.args, last), span), Clip(plan.args.positions[first] + 1, span)};
  }
  LLMI_HD static int Clip(int64_t position, int64_t span) {
    const int64_t offset = position - span * kAttentionSpan;
    return static_cast<int>(offset < 0 ? 0 : offset > kAttentionSpan ? kAttentionSpan : offset);
  }
  LLMI_HD int FirstTile() const { return begin / static_cast<int>(kSlotsPerTile); }
  LLMI_HD int EndTile() const { return (end + static_cast<int>(kSlotsPerTile) - 1) / static_cast<int>(kSlotsPerTile); }
  LLMI_HD bool AllSee(int position) const { return position >= all_begin && position < all_end; }
  LLMI_HD bool AllSeeTile(int tile) const {
    return AllSee(tile * static_cast<int>(kSlotsPerTile)) && AllSee((tile + 1) * static_cast<int>(kSlotsPerTile) - 1);
  }
  LLMI_HD bool SomeSee(int position) const { return position >= begin && position < end; }
};

}  // namespace llmi::cuda

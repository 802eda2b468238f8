// What the kernels of attention are given: arguments, and the host's division of the work.
#pragma once

#include "kernels/cuda/attention_heads.h"
#include "kernels/cuda/half_fragments.h"
#include "kernels/cuda/row_codes.h"
#include "kernels/cuda/span_plan.h"
#include "kernels/ops/attention.h"

namespace llmi::cuda {

constexpr int kMostSpanHeads = 8;  // that a merge takes together
// Of a launch whose rows are not in the cache yet: a row makes K and V of all earlier ones of its sequence.
constexpr int kMostNewRows = 32;
static_assert(kMostNewRows <= kMostSpanRows, "groups that are taken whole read K and V from the cache alone");

// Arguments of attention: the host's plan (span_plan.h), all on the device, and the part of it that a launch does.
struct AttentionPlan {
  AttentionArgs args;
  const int32_t* row_segments;
  const RowGroup* groups;
  const int32_t* begins;
  const SpanItem* items;
  const int32_t* num_items;
  int64_t item_begin = 0;
  int64_t launch_items = 0;    // of this launch, at most
  int64_t partial_begin = 0;   // index of its first row's first partial
  float* partials = nullptr;   // [row's span][head][AttentionPartialSize]
  uint32_t* counts = nullptr;  // [group][head]: blocks that have finished a span (span_merge.h)
  ProjectedRows rows{};        // k null: q is ready, and K and V are in the cache
  // What the merge of a row's spans does at its end. Null: nothing.
  GateArgs gate{};
  QuantizedRows codes = {};
  HalfRows halves = {};

  template <typename Visit>
  void ForEachPointer(const Visit& visit) const {
    visit(args.kv.base);
    visit(args.segments);
    visit(args.positions);
    visit(args.q);
    visit(args.sinks);
    visit(args.linear_biases);
    visit(args.out);
    visit(row_segments);
    visit(groups);
    visit(begins);
    visit(items);
    visit(num_items);
    visit(partials);
    visit(counts);
    rows.ForEachPointer(visit);
    visit(gate.gate);
    VisitPointers(codes, visit);
    visit(halves.fragments);
  }

  LLMI_HD bool makes_rows() const { return rows.k != nullptr; }
  // The items of this launch, of which a recorded one may have fewer than it has room for.
  LLMI_HD int64_t NumItems() const { return *num_items - item_begin < launch_items ? *num_items - item_begin : launch_items; }
  LLMI_HD const SpanItem& Item(int64_t index) const { return items[item_begin + index]; }
  LLMI_HD int64_t FirstSpan(int64_t row) const { return AttentionFirstVisible(args, row) / kAttentionSpan; }
  LLMI_HD int64_t EndSpan(int64_t row) const { return args.positions[row] / kAttentionSpan + 1; }
  LLMI_HD int64_t SpanStride() const { return args.num_heads * AttentionPartialSize(args.kv.head_dim); }
  LLMI_HD float* Partial(int64_t row, int64_t head, int64_t span) const {
    return partials + (begins[row] - partial_begin + span - FirstSpan(row)) * SpanStride() + head * AttentionPartialSize(args.kv.head_dim);
  }
};

}  // namespace llmi::cuda

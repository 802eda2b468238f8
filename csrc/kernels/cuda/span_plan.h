// The division of a batch's attention among blocks: the host plans it, the kernels read it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/ops/attention.h"

namespace llmi::cuda {

constexpr int64_t kGroupRows = 16;  // at most
// A group of kRowsOfWholeGroup rows or more is handled by one block (no partials in memory), if such groups have more than kMostSpanRows
// rows in total, so that enough blocks have work; otherwise its spans are split over blocks.
constexpr int64_t kRowsOfWholeGroup = 8;
constexpr int64_t kMostSpanRows = 64;
constexpr int64_t kMostWholeHeadDim = 256;  // a block has too few registers for more

// Rows that a block takes together: up to 16 neighbours of a chain with a bf16 cache, or with an fp16 cache if a block takes them whole;
// else one. Padding rows are in no group.
struct RowGroup {
  int32_t row_begin;
  int32_t num_rows;
};

// One span that some row of a group sees.
struct SpanItem {
  int32_t group;
  int32_t span;
};

struct SpanPlan {
  std::vector<RowGroup> groups;        // groups whose spans are split over blocks
  std::vector<RowGroup> whole_groups;  // the others
  std::vector<int32_t> begins = {0};   // [rows + 1]: where a row's spans begin among all split spans
  std::vector<SpanItem> items;         // group by group
  std::vector<int32_t> group_items;    // [groups + 1]: where a group's items begin

  SpanPlan() = default;
  // positions null: unknown; only the groups are planned.
  SpanPlan(const KvView& kv, int64_t window, const AttentionSegment* segments, int64_t num_segments, const int32_t* positions) {
    int64_t num_rows = 0;
    int64_t rows_of_large = 0;
    const auto may_be_whole = [&](RowGroup group) { return kv.head_dim <= kMostWholeHeadDim && group.num_rows >= kRowsOfWholeGroup; };
    ForEachGroup(kv, segments, num_segments, [&](RowGroup group) {
      num_rows += group.num_rows;
      if (may_be_whole(group)) rows_of_large += group.num_rows;
    });
    ForEachGroup(kv, segments, num_segments, [&](RowGroup group) {
      if (rows_of_large > kMostSpanRows && may_be_whole(group)) return whole_groups.push_back(group);
      const int32_t rows_each = kv.type == KvType::kBF16 ? group.num_rows : 1;
      for (int32_t row = 0; row < group.num_rows; row += rows_each) groups.push_back({group.row_begin + row, rows_each});
    });
    begins.assign(static_cast<size_t>(num_rows) + 1, 0);
    group_items.push_back(0);
    if (positions == nullptr) return;
    const auto first_span = [&](int64_t row) { return static_cast<int32_t>(FirstVisible(positions[row], window) / kAttentionSpan); };
    const auto end_span = [&](int64_t row) { return static_cast<int32_t>(positions[row] / kAttentionSpan + 1); };
    for (size_t g = 0; g < groups.size(); ++g) {
      const int32_t row_end = groups[g].row_begin + groups[g].num_rows;
      for (int32_t span = first_span(groups[g].row_begin); span < end_span(row_end - 1); ++span) {
        items.push_back({static_cast<int32_t>(g), span});
      }
      group_items.push_back(static_cast<int32_t>(items.size()));
      for (int32_t row = groups[g].row_begin; row < row_end; ++row) begins[static_cast<size_t>(row) + 1] = end_span(row) - first_span(row);
    }
    for (size_t row = 0; row < static_cast<size_t>(num_rows); ++row) begins[row + 1] += begins[row];
  }

  int64_t RowEnd(size_t group) const { return groups[group].row_begin + groups[group].num_rows; }
  // The number of spans of rows [begin, end).
  int64_t NumRowSpans(int64_t begin, int64_t end) const { return begins[static_cast<size_t>(end)] - begins[static_cast<size_t>(begin)]; }

 private:
  template <typename Visit>
  static void ForEachGroup(const KvView& kv, const AttentionSegment* segments, int64_t num_segments, const Visit& f) {
    for (int64_t s = 0; s < num_segments; ++s) {
      const AttentionSegment& segment = segments[s];
      const bool may_share = (kv.type == KvType::kBF16 || kv.type == KvType::kF16) && segment.parents == nullptr;
      const int64_t most = may_share ? kGroupRows : 1;
      for (int64_t row = 0; row < segment.num_rows; row += most) {
        f({static_cast<int32_t>(segment.row_begin + row), static_cast<int32_t>(std::min(most, segment.num_rows - row))});
      }
    }
  }
};

}  // namespace llmi::cuda

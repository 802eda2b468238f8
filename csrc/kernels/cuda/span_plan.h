// How attention over a batch is shared out among blocks: planned by the host, read by the kernels.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/attention.h"

namespace llmi::cuda {

constexpr int64_t kGroupRows = 16;  // at most
// Where groups have so many rows on average, and there are more rows than this, a block takes a group's spans one after the other: enough
// blocks have work without sharing them out, and no partials go through memory.
constexpr int64_t kRowsOfWholeGroups = 4;
constexpr int64_t kMostSpanRows = 64;
constexpr int64_t kMostWholeHeadDim = 256;  // beyond, a block has not registers enough

// Rows that a block takes together: in a bf16 cache up to 16 neighbours of a chain, else one. None fills up a launch.
struct RowGroup {
  int32_t row_begin;
  int32_t num_rows;
};

// One span that some row of a group sees.
struct SpanItem {
  int32_t group;
  int32_t span;
};

// Positions unknown (null): groups alone.
struct SpanPlan {
  std::vector<RowGroup> groups;
  std::vector<int32_t> begins;       // [rows + 1]: where a row's spans begin, among those of all rows
  std::vector<SpanItem> items;       // group by group; none where groups are taken whole
  std::vector<int32_t> group_items;  // [groups + 1]: where a group's items begin
  bool whole = false;

  SpanPlan() = default;
  SpanPlan(const KvView& kv, int64_t window, const AttentionSegment* segments, int64_t num_segments, const int32_t* positions) {
    int64_t num_rows = 0;
    bool chains = true;
    for (int64_t s = 0; s < num_segments; ++s) {
      const AttentionSegment& segment = segments[s];
      const int64_t most = kv.type == KvType::kBF16 && segment.parents == nullptr ? kGroupRows : 1;
      for (int64_t row = 0; row < segment.num_rows; row += most) {
        groups.push_back({static_cast<int32_t>(segment.row_begin + row), static_cast<int32_t>(std::min(most, segment.num_rows - row))});
      }
      num_rows += segment.num_rows;
      chains = chains && segment.parents == nullptr;
    }
    whole = chains && kv.type == KvType::kBF16 && kv.head_dim <= kMostWholeHeadDim && num_rows > kMostSpanRows &&
            static_cast<int64_t>(groups.size()) * kRowsOfWholeGroups <= num_rows;
    begins.assign(static_cast<size_t>(num_rows) + 1, 0);
    group_items.push_back(0);
    if (positions == nullptr || whole) return;
    const auto first_span = [&](int64_t row) { return static_cast<int32_t>(FirstVisible(positions[row], window) / kAttentionSpan); };
    const auto end_span = [&](int64_t row) { return static_cast<int32_t>(positions[row] / kAttentionSpan + 1); };
    for (int64_t row = 0; row < num_rows; ++row) {
      begins[static_cast<size_t>(row) + 1] = begins[static_cast<size_t>(row)] + end_span(row) - first_span(row);
    }
    for (size_t g = 0; g < groups.size(); ++g) {
      const int32_t end = end_span(groups[g].row_begin + groups[g].num_rows - 1);
      for (int32_t span = first_span(groups[g].row_begin); span < end; ++span) items.push_back({static_cast<int32_t>(g), span});
      group_items.push_back(static_cast<int32_t>(items.size()));
    }
  }

  // Of rows [begin, end).
  int64_t NumRowSpans(int64_t begin, int64_t end) const { return begins[static_cast<size_t>(end)] - begins[static_cast<size_t>(begin)]; }
};

}  // namespace llmi::cuda

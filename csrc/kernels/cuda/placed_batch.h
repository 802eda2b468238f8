// A step's segments and positions on the device, with the host's plan for them: one for each KV group.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/aligned.h"
#include "kernels/cuda/layout.h"
#include "kernels/cuda/span_plan.h"
#include "kernels/dispatch/device.h"

namespace llmi::cuda {

class PlacedBatch {
 public:
  // The batch as kernels see it; all pointers are the device's.
  struct Kernels {
    int64_t num_rows;
    const AttentionSegment* segments;
    const int32_t* row_segments;  // -1: fills up a launch
    const int32_t* positions;
    const RowGroup* groups;
    const RowGroup* whole_groups;  // [MostWholeGroups(num_rows)], filled up with empty ones
    const int32_t* begins;
    const int32_t* num_items;
    const SpanItem* items;
  };
  const Kernels& kernels() const { return kernels_; }
  const SpanPlan& plan() const { return plan_; }
  static int64_t MostWholeGroups(int64_t num_rows) { return num_rows / kRowsOfWholeGroup; }
  static int64_t NumRows(const AttentionSegment* segments, int64_t num_segments) {
    int64_t num_rows = 0;
    for (int64_t s = 0; s < num_segments; ++s) num_rows += segments[s].num_rows;
    return num_rows;
  }

  // positions null: any, and any window.
  bool Holds(const KvView& kv, int64_t window, const AttentionSegment* segments, int64_t num_segments, const int32_t* positions) const {
    const bool positions_match =
        positions == nullptr || (!positions_.empty() && window_ == window && std::equal(positions_.begin(), positions_.end(), positions));
    return positions_match && !key_.empty() && key_ == Key(kv, segments, num_segments);
  }

  // Arguments: Device::PlaceBatch. A batch of as many rows uses the place of the last one, unless the buffer was too small.
  void Place(const KvView& kv, int64_t window, const AttentionSegment* segments, int64_t num_segments, const int32_t* positions,
             int64_t num_rows, Device* device, std::vector<uint8_t>* staging) {
    key_.clear();  // nothing matches until this is done
    std::vector<AttentionSegment> there(segments, segments + num_segments);
    std::vector<int32_t> row_segments;
    std::vector<int32_t> lists;  // tables and parents
    for (int64_t s = 0; s < num_segments; ++s) {
      const AttentionSegment& segment = segments[s];
      row_segments.insert(row_segments.end(), static_cast<size_t>(segment.num_rows), static_cast<int32_t>(s));
      lists.insert(lists.end(), segment.block_table, segment.block_table + TableSize(kv, segment));
      if (segment.parents != nullptr) lists.insert(lists.end(), segment.parents, segment.parents + segment.num_rows);
    }
    positions_.clear();
    if (positions != nullptr) positions_.assign(positions, positions + row_segments.size());
    window_ = window;
    plan_ = SpanPlan(kv, window, segments, num_segments, positions);
    // Filled up to the rows of the launch.
    row_segments.resize(static_cast<size_t>(num_rows), -1);
    std::vector<int32_t> all_positions = positions_;
    all_positions.resize(static_cast<size_t>(num_rows));
    std::vector<RowGroup> whole_groups = plan_.whole_groups;
    whole_groups.resize(static_cast<size_t>(MostWholeGroups(num_rows)), {0, 0});
    std::vector<int32_t> begins = plan_.begins;
    begins.resize(static_cast<size_t>(num_rows) + 1, begins.back());
    const auto num_items = static_cast<int32_t>(plan_.items.size());
    Layout layout;
    // Offsets depend only on the number of rows, as each segment has at least one row. The items, tables and parents come last.
    const size_t segments_at = layout.Place<AttentionSegment>(nullptr, num_rows);
    const size_t row_segments_at = layout.Place(row_segments.data(), num_rows);
    const size_t positions_at = layout.Place(all_positions.data(), num_rows);
    const size_t groups_at = layout.Place<RowGroup>(nullptr, num_rows);
    const size_t whole_groups_at = layout.Place(whole_groups.data(), MostWholeGroups(num_rows));
    const size_t begins_at = layout.Place(begins.data(), num_rows + 1);
    const size_t num_items_at = layout.Place(&num_items, 1);
    const size_t items_at = layout.Place(plan_.items.data(), num_items);
    const size_t lists_at = layout.Place(lists.data(), static_cast<int64_t>(lists.size()));
    layout.Fill(segments_at, there.data(), num_segments);
    layout.Fill(groups_at, plan_.groups.data(), static_cast<int64_t>(plan_.groups.size()));
    if (buffer_.size() < layout.size()) buffer_.Reserve(2 * layout.size(), kName, device);
    const uint8_t* base = buffer_.data();
    const auto* next = reinterpret_cast<const int32_t*>(base + lists_at);
    for (AttentionSegment& segment : there) {
      segment.block_table = next;
      next += TableSize(kv, segment);
      if (segment.parents == nullptr) continue;
      segment.parents = next;
      next += segment.num_rows;
    }
    UploadLayout(layout, kName, device, &buffer_, staging);
    kernels_ = {num_rows,
                reinterpret_cast<const AttentionSegment*>(base + segments_at),
                reinterpret_cast<const int32_t*>(base + row_segments_at),
                reinterpret_cast<const int32_t*>(base + positions_at),
                reinterpret_cast<const RowGroup*>(base + groups_at),
                reinterpret_cast<const RowGroup*>(base + whole_groups_at),
                reinterpret_cast<const int32_t*>(base + begins_at),
                reinterpret_cast<const int32_t*>(base + num_items_at),
                reinterpret_cast<const SpanItem*>(base + items_at)};
    key_ = Key(kv, segments, num_segments);
  }

 private:
  static constexpr const char* kName = "block tables";

  // Segments as integers: their numbers, then tables and parents.
  static std::vector<int32_t> Key(const KvView& kv, const AttentionSegment* segments, int64_t num_segments) {
    std::vector<int32_t> key;
    for (int64_t s = 0; s < num_segments; ++s) {
      const AttentionSegment& segment = segments[s];
      key.insert(key.end(), {static_cast<int32_t>(segment.num_rows), static_cast<int32_t>(segment.base_len), segment.parents != nullptr});
      key.insert(key.end(), segment.block_table, segment.block_table + TableSize(kv, segment));
      if (segment.parents != nullptr) key.insert(key.end(), segment.parents, segment.parents + segment.num_rows);
    }
    return key;
  }
  static int64_t TableSize(const KvView& kv, const AttentionSegment& segment) {
    return (segment.base_len + segment.num_rows + kv.block_size - 1) / kv.block_size * kv.pages_per_block;
  }

  std::vector<int32_t> key_;
  std::vector<int32_t> positions_;  // of the segments' rows; empty: not known
  int64_t window_ = 0;
  SpanPlan plan_;
  AlignedBuffer buffer_;
  Kernels kernels_ = {};
};

}  // namespace llmi::cuda

// A step's segments and positions on the device, with the host's plan for them: one for each KV group.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/cuda/layout.h"
#include "kernels/cuda/span_plan.h"

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

  // Plans a step's part for this group, whose arrays then stand in three places of a layout. Nothing matches until it is settled.
  void Plan(const KvView& kv, int64_t window, const AttentionSegment* segments, int64_t num_segments, const int32_t* positions) {
    kv_ = kv;
    window_ = window;
    key_.clear();
    segments_.assign(segments, segments + num_segments);
    row_segments_.clear();
    lists_.clear();
    for (int64_t s = 0; s < num_segments; ++s) {
      const AttentionSegment& segment = segments[s];
      row_segments_.insert(row_segments_.end(), static_cast<size_t>(segment.num_rows), static_cast<int32_t>(s));
      lists_.insert(lists_.end(), segment.block_table, segment.block_table + TableSize(kv, segment));
      if (segment.parents != nullptr) lists_.insert(lists_.end(), segment.parents, segment.parents + segment.num_rows);
    }
    positions_.clear();
    if (positions != nullptr) positions_.assign(positions, positions + row_segments_.size());
    plan_ = SpanPlan(kv, window, segments, num_segments, positions);
    num_items_ = static_cast<int32_t>(plan_.items.size());
  }
  // The arrays whose places depend on the two numbers alone: rows of the launch, and spans, of which there are no more items.
  void PlaceArrays(int64_t num_rows, int64_t most_items, Layout* layout) {
    begins_ = plan_.begins;
    whole_groups_ = plan_.whole_groups;
    row_segments_.resize(static_cast<size_t>(num_rows), -1);
    whole_groups_.resize(static_cast<size_t>(MostWholeGroups(num_rows)), {0, 0});
    begins_.resize(static_cast<size_t>(num_rows) + 1, begins_.back());
    places_ = {.segments = layout->Place<AttentionSegment>(nullptr, num_rows),  // each has at least one row
               .row_segments = layout->Place(row_segments_.data(), num_rows),
               .groups = layout->Place<RowGroup>(nullptr, num_rows),
               .whole_groups = layout->Place(whole_groups_.data(), MostWholeGroups(num_rows)),
               .begins = layout->Place(begins_.data(), num_rows + 1),
               .num_items = layout->Place(&num_items_, 1),
               .items = layout->Place<SpanItem>(nullptr, most_items),
               .lists = 0};
    layout->Fill(places_.segments, segments_.data(), static_cast<int64_t>(segments_.size()));
    layout->Fill(places_.groups, plan_.groups.data(), static_cast<int64_t>(plan_.groups.size()));
    layout->Fill(places_.items, plan_.items.data(), num_items_);
  }
  // Tables and parents, which only segments name.
  void PlaceLists(Layout* layout) { places_.lists = layout->Place(lists_.data(), static_cast<int64_t>(lists_.size())); }
  // Before the layout is written. base: the memory of the device where it will stand; positions: of the launch's rows, there.
  void Settle(const uint8_t* base, const int32_t* positions) {
    key_ = Key(kv_, segments_.data(), static_cast<int64_t>(segments_.size()));
    const auto* next = reinterpret_cast<const int32_t*>(base + places_.lists);
    for (AttentionSegment& segment : segments_) {
      segment.block_table = next;
      next += TableSize(kv_, segment);
      if (segment.parents == nullptr) continue;
      segment.parents = next;
      next += segment.num_rows;
    }
    kernels_ = {static_cast<int64_t>(row_segments_.size()),
                reinterpret_cast<const AttentionSegment*>(base + places_.segments),
                reinterpret_cast<const int32_t*>(base + places_.row_segments),
                positions,
                reinterpret_cast<const RowGroup*>(base + places_.groups),
                reinterpret_cast<const RowGroup*>(base + places_.whole_groups),
                reinterpret_cast<const int32_t*>(base + places_.begins),
                reinterpret_cast<const int32_t*>(base + places_.num_items),
                reinterpret_cast<const SpanItem*>(base + places_.items)};
  }

 private:
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

  struct Places {
    size_t segments, row_segments, groups, whole_groups, begins, num_items, items, lists;
  };

  KvView kv_ = {};
  int64_t window_ = 0;
  std::vector<int32_t> key_;
  std::vector<int32_t> positions_;  // of the segments' rows; empty: not known
  SpanPlan plan_;
  // As they are uploaded.
  std::vector<AttentionSegment> segments_;
  std::vector<int32_t> row_segments_, begins_, lists_;
  std::vector<RowGroup> whole_groups_;
  int32_t num_items_ = 0;
  Places places_ = {};
  Kernels kernels_ = {};
};

}  // namespace llmi::cuda

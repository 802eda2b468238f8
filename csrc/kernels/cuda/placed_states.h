// The segments of a step's states on the device (kernels/ops/state.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/cuda/layout.h"
#include "kernels/ops/state.h"

namespace llmi::cuda {

class PlacedStates {
 public:
  // Of a launch; the ones behind the step's own have no rows.
  int64_t num_segments() const { return static_cast<int64_t>(segments_.size()); }
  const StateSegment* segments() const { return there_; }
  uint8_t* faults() const { return faults_there_; }

  void Plan(std::span<const StateSegment> segments) {
    segments_.assign(segments.begin(), segments.end());
    lists_.clear();
    captures_.clear();
    for (const StateSegment& segment : segments) {
      if (segment.parents != nullptr) lists_.insert(lists_.end(), segment.parents, segment.parents + segment.num_rows);
      lists_.insert(lists_.end(), segment.log, segment.log + LogSize(segment));
      captures_.insert(captures_.end(), segment.captures, segment.captures + segment.num_captures);
    }
  }
  // The arrays whose places depend on the number of segments of a launch alone.
  void PlaceArrays(int64_t num_segments, Layout* layout) {
    segments_.resize(static_cast<size_t>(num_segments), {});
    faults_.assign(static_cast<size_t>(num_segments), 0);
    segments_at_ = layout->Place(segments_.data(), num_segments);
    faults_at_ = layout->Place(faults_.data(), num_segments);
  }
  // What only segments name.
  void PlaceLists(Layout* layout) {
    lists_at_ = layout->Place(lists_.data(), static_cast<int64_t>(lists_.size()));
    captures_at_ = layout->Place(captures_.data(), static_cast<int64_t>(captures_.size()));
  }
  // Before the layout is written. base: the memory of the device where it will stand.
  void Settle(uint8_t* base) {
    const auto* list = reinterpret_cast<const int32_t*>(base + lists_at_);
    const auto* capture = reinterpret_cast<const StateCapture*>(base + captures_at_);
    for (StateSegment& segment : segments_) {
      if (segment.parents != nullptr) {
        segment.parents = list;
        list += segment.num_rows;
      }
      const int64_t log_size = LogSize(segment);
      segment.log = list;
      list += log_size;
      segment.captures = capture;
      capture += segment.num_captures;
    }
    there_ = reinterpret_cast<const StateSegment*>(base + segments_at_);
    faults_there_ = base + faults_at_;
  }

 private:
  // The chunks that the segment reads or writes, and those before them.
  static int64_t LogSize(const StateSegment& segment) {
    const bool reads = segment.from_len < segment.base_len;
    const bool writes = segment.num_kept > 0 || segment.num_committed < segment.num_rows;
    if (!reads && !writes) return 0;
    const int64_t end = segment.base_len + (writes ? segment.num_rows : 0);
    return (end - 1) / kLogRows - segment.log_first + 1;
  }

  std::vector<StateSegment> segments_;  // as they are uploaded
  std::vector<uint8_t> faults_;
  std::vector<int32_t> lists_;
  std::vector<StateCapture> captures_;
  size_t segments_at_ = 0, faults_at_ = 0, lists_at_ = 0, captures_at_ = 0;
  const StateSegment* there_ = nullptr;
  uint8_t* faults_there_ = nullptr;
};

}  // namespace llmi::cuda

// The inputs of a draw in a layout, and which launches its rows need.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "kernels/cuda/draw_plan.h"
#include "kernels/cuda/layout.h"

namespace llmi::cuda {

class PlacedDraw {
 public:
  // What a recording of the launches depends on, beside the number of rows.
  struct Shape {
    bool is_filtered, needs_mass, is_gathered, is_judged;  // some row
    std::array<int64_t, 5> capacities;
    auto operator<=>(const Shape&) const = default;
  };

  // Adds the batch's arrays to the layout; their places depend on num_rows and the shape alone. Rows behind the batch's are greedy. The
  // batch's arrays must last until the layout is written.
  void Place(const DrawBatch& batch, int64_t num_rows, Layout* layout) {
    num_rows_ = num_rows;
    num_batch_rows_ = batch.num_rows;
    padding_.clear();
    for (int64_t row = batch.num_rows; row < num_rows; ++row) {
      DrawRow& greedy = padding_.emplace_back();
      greedy.logits_row = row;
      greedy.temperature = 0.0f;
    }
    const auto any = [&](const auto& test) { return std::any_of(batch.rows, batch.rows + batch.num_rows, test); };
    shape_ = {any(IsFiltered), any(MassDecides), any(IsGathered), batch.num_drafted > 0, {}};
    rows_at_ = layout->Place<DrawRow>(nullptr, num_rows);
    layout->Fill(rows_at_, batch.rows, batch.num_rows);
    layout->Fill(rows_at_ + static_cast<size_t>(batch.num_rows) * sizeof(DrawRow), padding_.data(), num_rows - batch.num_rows);
    masks_at_ = PlaceList(batch.masks, batch.num_masks, 0, layout);
    penalties_at_ = PlaceList(batch.penalties, batch.num_penalties, 1, layout);
    allowed_at_ = PlaceList(batch.allowed, batch.num_allowed, 2, layout);
    filters_at_ = PlaceList(batch.filters, batch.num_filters, 3, layout);
    drafted_at_ = PlaceList(batch.drafted, batch.num_drafted, 4, layout);
  }
  // The plan's inputs, once the layout is written to `base`.
  DrawPlan PlanAt(const uint8_t* base) const {
    DrawPlan plan = {};
    plan.rows = reinterpret_cast<const DrawRow*>(base + rows_at_);
    plan.masks = reinterpret_cast<const MaskEdit*>(base + masks_at_);
    plan.penalties = reinterpret_cast<const PenaltyEdit*>(base + penalties_at_);
    plan.allowed = reinterpret_cast<const uint32_t*>(base + allowed_at_);
    plan.filters = reinterpret_cast<const FilterStep*>(base + filters_at_);
    plan.drafted = reinterpret_cast<const DraftedToken*>(base + drafted_at_);
    return plan;
  }
  const Shape& shape() const { return shape_; }
  int64_t num_rows() const { return num_rows_; }
  int64_t num_batch_rows() const { return num_batch_rows_; }

 private:
  template <typename T>
  size_t PlaceList(const T* from, int64_t count, size_t list, Layout* layout) {
    int64_t& capacity = shape_.capacities[list];
    for (capacity = std::min<int64_t>(count, 1); capacity < count;) capacity *= 2;
    const size_t place = layout->Place<T>(nullptr, capacity);
    layout->Fill(place, from, count);
    return place;
  }

  std::vector<DrawRow> padding_;
  int64_t num_rows_ = 0;
  int64_t num_batch_rows_ = 0;
  Shape shape_ = {};
  size_t rows_at_ = 0, masks_at_ = 0, penalties_at_ = 0, allowed_at_ = 0, filters_at_ = 0, drafted_at_ = 0;
};

}  // namespace llmi::cuda

#include "kernels/ops/state.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <vector>

#include "core/errors.h"
#include "core/thread_pool.h"

namespace llmi {
namespace {

bool IsFinite(const float* values, int64_t count) {
  uint32_t found = 0;
  for (int64_t i = 0; i < count; ++i) found |= ((std::bit_cast<uint32_t>(values[i]) & 0x7F800000u) == 0x7F800000u) ? 1u : 0u;
  return found == 0;
}

// One part of one segment's state.
class Part {
 public:
  Part(const StateRows& rows, const StateParts& parts, int64_t segment, int64_t part)
      : rows_(rows), parts_(parts), segment_(rows.segments[segment]), place_(segment), part_(part), state_(At(segment_.slot)) {}

  void Run() {
    Begin();
    for (int64_t position = segment_.from_len; position < segment_.base_len; ++position) {
      parts_.step(part_, state_, rows_.view.Logged(segment_, position), nullptr);
      Capture(position + 1);
    }
    for (int64_t row = 0; row < segment_.num_committed; ++row) {
      Step(state_, row);
      Capture(segment_.base_len + row + 1);
    }
    if (!IsFinite(state_, parts_.part_floats)) std::atomic_ref<uint8_t>(rows_.faults[place_]).store(1, std::memory_order_relaxed);
    if (segment_.num_committed < segment_.num_rows) RunDraft();
  }

 private:
  float* At(int32_t slot) const { return rows_.view.State(slot) + part_ * parts_.part_floats; }

  void Begin() {
    if (segment_.from_slot < 0) {
      std::fill_n(state_, parts_.part_floats, 0.0f);
    } else if (segment_.from_slot != segment_.slot) {
      std::copy_n(At(segment_.from_slot), parts_.part_floats, state_);
    }
  }

  void Step(float* state, int64_t row) const {
    const int64_t place = segment_.row_begin + row;
    parts_.step(part_, state, rows_.inputs + place * rows_.input_stride, rows_.out + place * rows_.out_stride);
  }

  void Capture(int64_t len) {
    if (next_capture_ >= segment_.num_captures || segment_.captures[next_capture_].len != len) return;
    std::copy_n(state_, parts_.part_floats, At(segment_.captures[next_capture_++].slot));
  }

  // A draft's rows begin with the state of their parents: the last committed token's, or that of a row of the draft.
  void RunDraft() const {
    const int64_t first = segment_.num_committed;
    const bool is_chain = segment_.parents == nullptr;
    const auto size = static_cast<size_t>(parts_.part_floats);
    std::vector<float> states((is_chain ? 1 : static_cast<size_t>(segment_.num_rows - first)) * size);
    const auto of = [&](int64_t row) { return states.data() + (is_chain ? 0 : row - first) * parts_.part_floats; };
    for (int64_t row = first; row < segment_.num_rows; ++row) {
      const int64_t parent = is_chain ? row - 1 : segment_.parents[row];
      const float* before = parent < first ? state_ : of(parent);
      if (before != of(row)) std::copy_n(before, size, of(row));
      Step(of(row), row);
    }
  }

  const StateRows& rows_;
  const StateParts& parts_;
  const StateSegment& segment_;
  int64_t place_;
  int64_t part_;
  float* state_;
  int64_t next_capture_ = 0;
};

void LogInputs(const StateRows& rows, const StateSegment& segment) {
  for (int64_t row = std::max<int64_t>(0, segment.num_committed - segment.num_kept); row < segment.num_rows; ++row) {
    std::copy_n(rows.inputs + (segment.row_begin + row) * rows.input_stride, rows.input_floats,
                rows.view.Logged(segment, segment.base_len + row));
  }
}

}  // namespace

void AdvanceStates(const KernelContext& context, const StateRows& rows, const StateParts& parts) {
  CheckInternal(context.device == nullptr, "states are advanced on the CPU");
  context.pool->ParallelFor(rows.num_segments * parts.num_parts, context.num_threads,
                            [&](int64_t task) { Part(rows, parts, task / parts.num_parts, task % parts.num_parts).Run(); });
  for (int64_t s = 0; s < rows.num_segments; ++s) LogInputs(rows, rows.segments[s]);
}

}  // namespace llmi

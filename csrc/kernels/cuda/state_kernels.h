// Ops that advance states (kernels/ops/state.h): a thread takes one channel or column through all rows of a segment, so that it needs no
// other thread. What it holds of the state is in shared memory meanwhile.
#pragma once

#include <cstddef>

#include "kernels/cpu/reference/conv_value.h"
#include "kernels/cpu/reference/recurrence_values.h"
#include "kernels/cuda/block.h"
#include "kernels/cuda/row_kernels.h"
#include "kernels/ops/conv.h"
#include "kernels/ops/state.h"

namespace llmi::cuda {

constexpr int kStateThreads = 32;

// A thread's part of a state: every stride-th value from `begin` on.
struct HeldState {
  float* values;  // kStateThreads apart
  int64_t count;
  int64_t begin;
  int64_t stride;

  LLMI_HD void Load(const float* state) const {
    for (int64_t i = 0; i < count; ++i) values[i * kStateThreads] = state == nullptr ? 0.0f : state[begin + i * stride];
  }
  LLMI_HD void Store(float* state) const {
    for (int64_t i = 0; i < count; ++i) state[begin + i * stride] = values[i * kStateThreads];
  }
  LLMI_HD bool IsFinite() const {
    uint32_t found = 0;
    for (int64_t i = 0; i < count; ++i) {
      found |= (__builtin_bit_cast(uint32_t, values[i * kStateThreads]) & 0x7F800000u) == 0x7F800000u ? 1u : 0u;
    }
    return found == 0;
  }
};

template <typename Visit>
LLMI_HD void VisitPointers(const StateRows& rows, const Visit& visit) {
  visit(rows.view.slots);
  visit(rows.view.chunks);
  visit(rows.segments);
  visit(rows.inputs);
  visit(rows.out);
  visit(rows.faults);
}

// step(input, out) takes `held` through a row.
template <typename Step>
LLMI_HD void AdvanceHeld(const StateRows& rows, const StateSegment& segment, const HeldState& held, uint8_t* fault, const Step& step) {
  const StateView& view = rows.view;
  const auto take = [&](int64_t row, bool is_wanted) {
    const int64_t place = segment.row_begin + row;
    step(rows.inputs + place * rows.input_stride, is_wanted ? rows.out + place * rows.out_stride : nullptr);
  };
  held.Load(segment.from_slot < 0 ? nullptr : view.State(segment.from_slot));
  int64_t capture = 0;
  LLMI_ROLL
  for (int64_t position = segment.from_len; position < segment.base_len + segment.num_committed; ++position) {
    if (position < segment.base_len) {
      step(view.Logged(segment, position), nullptr);
    } else {
      take(position - segment.base_len, true);
    }
    if (capture < segment.num_captures && segment.captures[capture].len == position + 1) {
      held.Store(view.State(segment.captures[capture++].slot));
    }
  }
  held.Store(view.State(segment.slot));
  if (!held.IsFinite()) *fault = 1;
  // A draft's row goes on from its parent. If that is not the row before, the way to it is gone again.
  const int64_t committed = segment.num_committed - 1;
  int64_t last = committed;
  LLMI_ROLL
  for (int64_t row = committed + 1; row < segment.num_rows; ++row) {
    const auto before = [&](int64_t node) {
      const int64_t parent = segment.parents != nullptr ? segment.parents[node] : node - 1;
      return parent < committed ? committed : parent;
    };
    const int64_t parent = before(row);
    if (parent != last) {
      held.Load(view.State(segment.slot));
      int64_t depth = 0;
      for (int64_t node = parent; node > committed; node = before(node)) ++depth;
      LLMI_ROLL
      for (; depth > 0; --depth) {
        int64_t node = parent;
        for (int64_t up = 1; up < depth; ++up) node = before(node);
        take(node, false);
      }
    }
    take(row, true);
    last = row;
  }
}

// Logs the inputs of a segment's rows, every num_threads-th value from `first` on.
LLMI_HD inline void LogInputs(const StateRows& rows, const StateSegment& segment, int64_t first, int64_t num_threads) {
  const int64_t begin = segment.num_committed - segment.num_kept;
  for (int64_t row = begin < 0 ? 0 : begin; row < segment.num_rows; ++row) {
    const float* input = rows.inputs + (segment.row_begin + row) * rows.input_stride;
    float* logged = rows.view.Logged(segment, segment.base_len + row);
    for (int64_t i = first; i < rows.input_floats; i += num_threads) logged[i] = input[i];
  }
}

// Block x: a segment; y: kStateThreads channels, one a thread.
struct ConvKernel {
  ConvArgs conv;
  StateRows rows;

  static size_t SharedBytes(const ConvArgs& conv) { return static_cast<size_t>((conv.length - 1) * kStateThreads) * sizeof(float); }
  static int64_t Ranges(const ConvArgs& conv) { return (conv.channels + kStateThreads - 1) / kStateThreads; }

  template <typename Visit>
  void ForEachPointer(const Visit& visit) const {
    visit(conv.weight);
    visit(conv.bias);
    VisitPointers(rows, visit);
  }

  template <typename Block>
  LLMI_HD void operator()(const Block& block) const {
    const StateSegment segment = rows.segments[block.x];
    if (segment.num_rows == 0) return;
    const int64_t first = block.y * kStateThreads;
    block.ForEachThread([&](int thread) {
      if (first + thread >= conv.channels) return;
      float* shared = reinterpret_cast<float*>(block.shared);
      const HeldState held{shared + thread, conv.length - 1, first + thread, conv.channels};
      LogInputs(rows, segment, first + thread, conv.channels);
      AdvanceHeld(rows, segment, held, rows.faults + block.x, [&](const float* input, float* out) {
        reference::StepChannel({.channels = kStateThreads,
                                .length = conv.length,
                                .weight = conv.weight + first,
                                .weight_stride = conv.channels,
                                .bias = conv.bias == nullptr ? nullptr : conv.bias + first,
                                .activation = conv.activation,
                                .state = shared,
                                .input = input + first,
                                .out = out == nullptr ? nullptr : out + first},
                               thread);
      });
    });
  }
};

template <typename Visit>
LLMI_HD void VisitPointers(const RecurrenceArgs& args, const Visit& visit) {
  visit(args.inputs);
  visit(args.time);
  visit(args.write);
  visit(args.time_bias);
  visit(args.decay);
  visit(args.skip);
}

// Block x: a row. A thread takes heads.
struct RecurrenceFactorsKernel {
  RecurrenceArgs args;

  template <typename Visit>
  void ForEachPointer(const Visit& visit) const {
    VisitPointers(args, visit);
  }

  template <typename Block>
  LLMI_HD void operator()(const Block& block) const {
    block.ForEachThread([&](int thread) {
      for (int64_t head = thread; head < args.shape.num_heads; head += block.num_threads) reference::FindFactors(args, block.x, head);
    });
  }
};

// Block x: a segment; y: kStateThreads columns of a head, one a thread.
struct RecurrenceKernel {
  RecurrenceArgs args;
  StateRows rows;

  static size_t SharedBytes(const RecurrenceShape& shape) { return static_cast<size_t>(shape.key_size * kStateThreads) * sizeof(float); }
  LLMI_HD static int64_t Ranges(const RecurrenceShape& shape) { return (shape.value_size + kStateThreads - 1) / kStateThreads; }

  template <typename Visit>
  void ForEachPointer(const Visit& visit) const {
    VisitPointers(args, visit);
    VisitPointers(rows, visit);
  }

  template <typename Block>
  LLMI_HD void operator()(const Block& block) const {
    const StateSegment segment = rows.segments[block.x];
    if (segment.num_rows == 0) return;
    const RecurrenceShape& shape = args.shape;
    const int64_t ranges = Ranges(shape);
    const int64_t head = block.y / ranges;
    block.ForEachThread([&](int thread) {
      LogInputs(rows, segment, block.y * kStateThreads + thread, shape.num_heads * ranges * kStateThreads);
      const int64_t column = block.y % ranges * kStateThreads + thread;
      if (column >= shape.value_size) return;
      const int64_t state_block = head * shape.num_blocks() + column / kStateColumns;
      const HeldState held{reinterpret_cast<float*>(block.shared) + thread, shape.key_size,
                           state_block * shape.key_size * kStateColumns + column % kStateColumns, kStateColumns};
      AdvanceHeld(rows, segment, held, rows.faults + block.x, [&](const float* input, float* out) {
        reference::StepColumn(args, head, column, held.values, kStateThreads, input, out);
      });
    });
  }
};

// out = a * b, or silu(a) * b. Block x: a row.
struct MultiplyRowsKernel {
  StridedRows a;
  StridedRows b;
  int64_t size;
  bool silu;
  float* out;
  int64_t out_stride;

  template <typename Visit>
  void ForEachPointer(const Visit& visit) const {
    visit(a.values);
    visit(b.values);
    visit(out);
  }

  template <typename Block>
  LLMI_HD void operator()(const Block& block) const {
    block.ForEachThread([&](int thread) {
      for (int64_t i = thread; i < size; i += block.num_threads) {
        const float first = a.values[block.x * a.stride + i];
        out[block.x * out_stride + i] = (silu ? SiluF32(first) : first) * b.values[block.x * b.stride + i];
      }
    });
  }
};

}  // namespace llmi::cuda

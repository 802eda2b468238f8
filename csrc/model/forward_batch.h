// The input and the result of one forward pass of the decoder.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/dispatch/device.h"
#include "kernels/ops/attention.h"
#include "kernels/ops/state.h"

namespace llmi {

// The rows of one sequence in a batch.
struct BatchSegment {
  int64_t row_begin;
  int64_t num_rows;
  int64_t base_len;       // cached tokens before these rows
  int64_t parents_begin;  // index of the segment's num_rows values in ForwardBatch::parents; -1: the rows are a chain
};

// The states that a segment of the batch reads and writes, as in StateSegment.
struct BatchState {
  int64_t num_committed;
  int64_t from_len;
  int64_t num_kept;
  int64_t log_begin;  // index of the segment's num_log values in ForwardBatch::state_logs
  int64_t num_log;
  int64_t log_first;
  int64_t captures_begin;  // likewise in ForwardBatch::captures
  int64_t num_captures;
  int32_t from_slot;
  int32_t slot;
};

// Rows to whose hidden states after a layer a vector is added.
struct SteeredRows {
  int64_t row_begin;
  int64_t num_rows;
  int64_t layer;         // 0 = embedding output
  int64_t values_begin;  // of its hidden_size values in ForwardBatch::steering
};

// One ragged batch. The rows of each sequence are consecutive. Offsets refer to the batch's own vectors: it holds no pointers.
struct ForwardBatch {
  std::vector<int32_t> token_ids;      // [num_rows]; with a device, an id below zero names a token that it drew (StepInputs)
  std::vector<int32_t> positions;      // [num_rows]
  std::vector<BatchSegment> segments;  // in row order
  std::vector<int32_t> parents;        // the parents of all trees (kernels/ops/attention.h), segment after segment
  std::vector<int32_t> block_tables;   // all tables, one after the other
  std::vector<int64_t> table_begins;   // [num_segments, num_groups]: where the table of a segment in a KV group begins
  size_t num_groups = 0;
  std::vector<SparseView> views;   // of the segments, up to the last one that has one; the others see all
  std::vector<BatchState> states;  // of each segment, if layers have states
  std::vector<int32_t> state_logs;
  std::vector<StateCapture> captures;
  std::vector<int32_t> token_types;  // [num_rows], of a model that has some; empty: all are 0
  std::vector<int32_t> wanted_rows;  // rows whose final hidden state is an output, ascending
  // Hidden states after these layers (0 = embedding output), at the wanted rows.
  std::vector<int> tap_layers;
  std::vector<int> attention_layers;  // attention weights of these layers (1 = first), at the wanted rows
  std::vector<int> kept_layers;       // the decoder keeps the hidden states after these layers, of all rows (Decoder::rows)

  std::vector<SteeredRows> steered;  // no row twice for a layer
  std::vector<float> steering;       // vectors, one after the other

  int64_t num_rows() const { return static_cast<int64_t>(token_ids.size()); }
  SparseView View(size_t s) const { return s < views.size() ? views[s] : SparseView{}; }
  bool picks() const {
    return std::ranges::any_of(views, [](const SparseView& view) { return view.picks(); });
  }
  // Segment s as attention reads it in a KV group. Its pointers are valid while this batch is unchanged.
  AttentionSegment Segment(size_t s, size_t group) const {
    const BatchSegment& segment = segments[s];
    return {segment.row_begin,
            segment.num_rows,
            segment.base_len,
            block_tables.data() + table_begins[s * num_groups + group],
            segment.parents_begin < 0 ? nullptr : parents.data() + segment.parents_begin,
            View(s)};
  }
  // The same as ops that advance states read it.
  StateSegment States(size_t s) const {
    const BatchSegment& segment = segments[s];
    const BatchState& state = states[s];
    return {.row_begin = segment.row_begin,
            .num_rows = segment.num_rows,
            .num_committed = state.num_committed,
            .base_len = segment.base_len,
            .parents = segment.parents_begin < 0 ? nullptr : parents.data() + segment.parents_begin,
            .from_slot = state.from_slot,
            .from_len = state.from_len,
            .slot = state.slot,
            .log = state_logs.data() + state.log_begin,
            .log_first = state.log_first,
            .num_kept = state.num_kept,
            .captures = captures.data() + state.captures_begin,
            .num_captures = state.num_captures};
  }
};

struct ForwardResult {
  // [num_wanted, hidden_size], after the final norm, in the memory where the ops run. The decoder owns it. It is valid until the next
  // Forward; on a device until the Forward after the next, so that one step can be launched while another runs.
  const float* hidden = nullptr;
  DrawTicket ticket = 0;                                   // of the draw that was a part of the step
  std::vector<uint8_t> state_faults;                       // by segment: 1 where a state is not finite; empty: no layer has one
  std::vector<std::vector<float>> taps;                    // per tap layer [num_wanted, hidden_size], before any norm
  std::vector<std::vector<std::vector<float>>> attention;  // per attention layer, per wanted row [num_heads, slots up to it]
};

}  // namespace llmi

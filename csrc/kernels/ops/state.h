// States that a layer carries from row to row of a sequence, as short convolutions and recurrences do.
//
// A state is a function of the rows before it alone: it is advanced row by row, in order, in fp32, and never by a formula for several rows.
// So neither pieces nor batches change a bit of it.
// Versions of a sequence's state lie in slots. A step reads one and writes one, which may be the same; a draft changes none. What a row
// brings to the state is its input. Inputs of draft rows are logged, so that those which are accepted are applied before the next step's
// rows, and inputs of the last rows of sequences that go back.
#pragma once

#include <stdint.h>

#include <functional>

#include "core/host_device.h"
#include "kernels/ops/context.h"

namespace llmi {

constexpr int64_t kLogRows = 32;  // of a chunk of a log

// The state after `len` tokens is copied to a slot.
struct StateCapture {
  int64_t len;
  int32_t slot;
};

// The rows of one sequence: num_committed tokens, then the nodes of a draft.
struct StateSegment {
  int64_t row_begin;
  int64_t num_rows;
  int64_t num_committed;
  int64_t base_len;        // tokens before these rows
  const int32_t* parents;  // of the rows, as in attention; null: they are a chain
  int32_t from_slot;       // the state after from_len <= base_len tokens; -1: zeros, and from_len is 0
  int64_t from_len;        // logged inputs [from_len, base_len) are applied before the rows
  int32_t slot;            // gets the state after base_len + num_committed tokens
  // The chunks that hold the inputs of positions from log_first * kLogRows on; -1: none of these is logged. A draft row's position here is
  // that of its slot in the KV cache: base_len plus its place among the rows.
  const int32_t* log;
  int64_t log_first;
  int64_t num_kept;              // so many of the last committed rows are logged, too
  const StateCapture* captures;  // ascending, of lengths in (from_len, base_len + num_committed]
  int64_t num_captures;
};

// Where the versions and the logs of one state of one layer lie.
struct StateView {
  uint8_t* slots;
  int64_t slot_bytes;
  int64_t slot_offset;
  uint8_t* chunks;
  int64_t log_row_bytes;  // of the inputs of all layers
  int64_t log_offset;

  LLMI_HD float* State(int32_t slot) const { return reinterpret_cast<float*>(slots + slot * slot_bytes + slot_offset); }
  LLMI_HD float* Logged(const StateSegment& segment, int64_t position) const {
    const int64_t chunk = segment.log[position / kLogRows - segment.log_first];
    return reinterpret_cast<float*>(chunks + (chunk * kLogRows + position % kLogRows) * log_row_bytes + log_offset);
  }
};

// The rows of one step, as one state of one layer takes them.
struct StateRows {
  StateView view;
  const StateSegment* segments;  // the host's, and so is what they point to
  int64_t num_segments;
  const float* inputs;  // [num_rows, input_floats], rows input_stride apart
  int64_t input_floats;
  int64_t input_stride;
  float* out;  // rows out_stride apart
  int64_t out_stride;
  uint8_t* faults;  // [num_segments]: set to 1 where a state is not finite after the committed rows. A device keeps its own
};

// A state of num_parts parts of part_floats values, one after the other, which are advanced independently.
struct StateParts {
  int64_t num_parts;
  int64_t part_floats;
  // Takes a part of the state, in place, through the row of this input, and stores the part's values of the row in out. out null: they are
  // not wanted.
  std::function<void(int64_t part, float* state, const float* input, float* out)> step;
};

// On the CPU alone.
void AdvanceStates(const KernelContext& context, const StateRows& rows, const StateParts& parts);

}  // namespace llmi

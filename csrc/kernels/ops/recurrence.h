// recurrence: the gated delta rule, and Mamba-2's scan. A head keeps a matrix S [key_size, value_size]; each row, in order:
//   step = softplus(time + time_bias), no less than least_step, no more than most_step;  a = exp(step * decay)
//   delta rule  k' = 1 / sqrt(sum of k^2 + 1e-6), q' likewise;  beta = sigmoid(write)
//               memory = (a * k') * (sum over n of S[n] k[n]);  w = (v - memory) * (beta * k')
//               S[n] = fma(k[n], w, a * S[n]);  out = (sum of S[n] q[n]) * (q' / sqrt(key_size))
//   Mamba-2     w = v * step;  S[n] = fma(k[n], w, a * S[n]);  out = sum of S[n] q[n], then fma(skip, v, out)
// for each column of v, S and out by itself. In Mamba's words k is B, q is C, v is x, time is dt, skip is D.
// Sums over n: four sums of n modulo 4, each by fma in order, folded 0 + 2 and 1 + 3, then both. Sums of k^2 and q^2: the 16 lanes of
// norms. softplus(x) = max(x, 0) + log(1 + exp(-|x|)). NaN stays NaN. Token by token, never by chunks: a chunk's formula has other
// roundings, and then bits would depend on where a prompt is cut. Sources: Yang et al., Gated Delta Networks, 2024; Dao and Gu,
// Transformers are SSMs, 2024.
#pragma once

#include <stdint.h>

#include "core/host_device.h"
#include "kernels/ops/context.h"

namespace llmi {

struct StateRows;

constexpr int64_t kMostKeySize = 256;
constexpr int64_t kStateColumns = 16;  // of a block of the state

// What a row's step multiplies with, for each head.
enum RecurrenceFactor { kDecayFactor, kMemoryFactor, kWriteFactor, kReadFactor, kNumFactors };

struct RecurrenceShape {
  bool is_delta;
  int64_t num_heads;
  int64_t num_groups;  // of queries and keys
  bool tiled_groups;   // head h reads group h % num_groups, not h / (num_heads / num_groups)
  int64_t key_size;
  int64_t value_size;

  LLMI_HD int64_t query_floats() const { return num_groups * key_size; }
  LLMI_HD int64_t value_floats() const { return num_heads * value_size; }
  // A row's queries, keys and values, as they come out of the convolution: in this order; Mamba-2's are values, keys and queries.
  LLMI_HD int64_t channels() const { return 2 * query_floats() + value_floats(); }
  LLMI_HD int64_t query() const { return is_delta ? 0 : value_floats() + query_floats(); }
  LLMI_HD int64_t key() const { return is_delta ? query_floats() : value_floats(); }
  LLMI_HD int64_t value() const { return is_delta ? 2 * query_floats() : 0; }
  // Behind them in a row of inputs: [kNumFactors, num_heads].
  LLMI_HD int64_t factor(RecurrenceFactor which) const { return channels() + which * num_heads; }
  LLMI_HD int64_t input_floats() const { return channels() + kNumFactors * num_heads; }
  LLMI_HD int64_t group(int64_t head) const { return tiled_groups ? head % num_groups : head / (num_heads / num_groups); }
  // A head's state is blocks of 16 columns [key_size, 16].
  LLMI_HD int64_t num_blocks() const { return (value_size + kStateColumns - 1) / kStateColumns; }
  LLMI_HD int64_t state_floats() const { return num_heads * num_blocks() * key_size * kStateColumns; }
};

struct RecurrenceArgs {
  RecurrenceShape shape;
  float* inputs;  // rows of input_floats, input_stride apart; the factors are filled in
  int64_t input_stride;
  int64_t num_rows;
  const float* time;   // [num_rows, num_heads], rows time_stride apart
  const float* write;  // the same, of the delta rule; else null
  int64_t time_stride;
  const float* time_bias;  // [num_heads]
  const float* decay;      // [num_heads], below 0
  const float* skip;       // [num_heads] or null
  float least_step;
  float most_step;
};

// Blocks [block_begin, block_end) of a head.
struct RecurrenceTask {
  int64_t head;
  int64_t block_begin;
  int64_t block_end;
};

// rows: but for their inputs, which are the args'. out: rows of value_floats.
// Errors (kInvalidArgument): a key_size outside 1 to kMostKeySize; groups that do not divide the heads.
void Recurrence(const KernelContext& context, const RecurrenceArgs& args, StateRows rows);

}  // namespace llmi

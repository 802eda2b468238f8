// The buffers of a decoder's forward pass. They grow to the largest step so far; Reserve lets them have their full size at once.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/aligned.h"
#include "kernels/ops/context.h"
#include "model/spec.h"

namespace llmi {

// The MLP runs for this many rows at a time. On a CPU its intermediate values then stay in the L2 cache; on a device its weights are read
// once for a step of the usual size. The workspace stays small.
constexpr int64_t MostMlpRows(bool on_device) { return on_device ? 2048 : 256; }

// Matrices of single heads run for this many rows at a time.
constexpr int64_t kHeadRows = 256;

// The forms of some rows, other than fp32, that linear layers read (kernels/ops/linear_input.h).
struct FormsRoom {
  AlignedBuffer codes, scales, rounded;
};

struct Workspace {
  AlignedBuffer stream;           // [rows, hidden]: the residual stream
  AlignedBuffer normed;           // [rows, hidden]: its norm; then what is to be added to it
  AlignedBuffer kept;             // [rows, hidden]: what the MLP of a parallel layer reads
  AlignedBuffer projected;        // [rows, queries | keys | values | gate]
  AlignedBuffer queries;          // [rows, heads * head_dim]: those of a latent
  AlignedBuffer attended;         // [rows, heads * padded_head_dim]
  AlignedBuffer packed;           // [rows, heads * head_dim]: the same without padding, or values of the heads of a latent
  AlignedBuffer query_latent;     // [rows, query_rank]
  AlignedBuffer by_head;          // [heads, kHeadRows, values]: what matrices of single heads read, and behind it what they return
  AlignedBuffer gate_up;          // [MLP's rows, gate | up]
  AlignedBuffer activated;        // [MLP's rows, size of the MLP]
  AlignedBuffer own;              // of one of several ranks: its columns of an inner matrix, before they are placed between the others'
  AlignedBuffer router;           // [MLP's rows, experts]: their scores, then [MLP's rows, used]: weights, then gates of the shared one
  AlignedBuffer pairs;            // the integers of ExpertPairs
  AlignedBuffer gathered;         // [pairs, hidden]: what experts read, then what they return
  AlignedBuffer mixed;            // [MLP's rows, hidden]: the sum of a row's experts
  AlignedBuffer layer_rows;       // [rows, places * size]: embeddings for the layers
  AlignedBuffer position_values;  // PositionValues
  AlignedBuffer hidden;           // [wanted rows, hidden]
  AlignedBuffer hidden_in_turn;   // the same, of every second step on a device (Device::turn)
  AlignedBuffer logits;           // [logits rows, vocabulary]
  FormsRoom forms;
  FormsRoom activated_forms;  // its own: the input of gate and up is still read while that of down is written
  FormsRoom gathered_forms;   // of what experts and matrices of single heads read

  // Allocates all that steps of num_rows rows and the logits of num_logits_rows rows need.
  void Reserve(const KernelContext& context, const ModelSpec& spec, int64_t num_rows, int64_t num_logits_rows);
  // The number of bytes that Reserve allocates without a device; with one, about as many.
  static uint64_t Bytes(const ModelSpec& spec, int64_t num_rows, int64_t num_logits_rows, bool wide_activations, bool on_device);
};

// Rows of the MLP's buffers: rows of the stream, or pairs of a row and an expert.
inline int64_t ExpertRows(const MoeSpec& moe, int64_t num_rows) { return num_rows * moe.num_used; }
// Floats of Workspace::router, and integers of Workspace::pairs.
inline int64_t RouterFloats(const MoeSpec& moe, int64_t num_rows) { return num_rows * (moe.num_experts + moe.num_used + 1); }
inline int64_t PairIntegers(const MoeSpec& moe, int64_t num_rows) { return 3 * num_rows * moe.num_used + moe.num_experts + 1; }

// Values of a row in the larger part of Workspace::by_head; 0 without a latent.
inline int64_t ByHeadSize(const AttentionSpec& attention) {
  const LatentSpec& latent = attention.latent;
  return attention.num_heads * std::max({latent.rank, latent.key_size, latent.value_size});
}
// Values of a row of attention's heads behind it, before the output projection.
int64_t HeadValues(const AttentionSpec& attention);
// Values of a row of Workspace::projected in this layer.
int64_t ProjectedSize(const AttentionSpec& attention);
int64_t GateSize(const AttentionSpec& attention);
// Values that gate and up have for each row of the MLP's output.
inline int64_t GateUpSize(const MlpSpec& mlp) { return mlp.gated ? 2 * mlp.size : mlp.size; }

// The buffer with room for `count` values.
float* Floats(const KernelContext& context, AlignedBuffer& buffer, int64_t count);
// Codes of one byte, or of two: all high bytes, then all low ones.
inline int64_t NumCodeBytes(int64_t num_values, bool wide) { return wide ? 2 * num_values : num_values; }
// 32 values have at most two scales, one sum and two half sums.
inline int64_t ScaleFloats(int64_t num_values) { return num_values / 32 * 5; }
inline size_t FloatBytes(int64_t count) { return static_cast<size_t>(count) * sizeof(float); }

}  // namespace llmi

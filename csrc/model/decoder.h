// The decoder: one forward pass for prefill, chunks, decode, verification and trees.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cache/kv_cache.h"
#include "kernels/ops/attention.h"
#include "kernels/ops/context.h"
#include "kernels/ops/linear_input.h"
#include "model/rope_table.h"
#include "model/shortlist.h"
#include "model/spec.h"
#include "model/weights.h"

namespace llmi {

// The rows of one sequence in a batch.
struct BatchSegment {
  int64_t row_begin;
  int64_t num_rows;
  int64_t base_len;       // cached tokens before these rows
  int64_t parents_begin;  // index of the segment's num_rows values in ForwardBatch::parents; -1: the rows are a chain
};

// One ragged batch. The rows of each sequence are consecutive. Offsets refer to the batch's own vectors: it holds no pointers.
struct ForwardBatch {
  std::vector<int32_t> token_ids;      // [num_rows]; with a device, an id below zero names a token that it drew (Device::Embedding)
  std::vector<int32_t> positions;      // [num_rows]
  std::vector<BatchSegment> segments;  // in row order
  std::vector<int32_t> parents;        // the parents of all trees (kernels/ops/attention.h), segment after segment
  std::vector<int32_t> block_tables;   // all tables, one after the other
  std::vector<int64_t> table_begins;   // [num_segments, num_groups]: where the table of a segment in a KV group begins
  size_t num_groups = 0;
  std::vector<int32_t> wanted_rows;  // rows whose final hidden state is an output, ascending
  // Hidden states after these layers (0 = embedding output), at the wanted rows.
  std::vector<int> tap_layers;
  std::vector<int> attention_layers;  // attention weights of these layers (1 = first), at the wanted rows

  int64_t num_rows() const { return static_cast<int64_t>(token_ids.size()); }
  // Segment s as attention reads it in a KV group. Its pointers are valid while this batch is unchanged.
  AttentionSegment Segment(size_t s, size_t group) const {
    const BatchSegment& segment = segments[s];
    return {segment.row_begin, segment.num_rows, segment.base_len, block_tables.data() + table_begins[s * num_groups + group],
            segment.parents_begin < 0 ? nullptr : parents.data() + segment.parents_begin};
  }
};

struct ForwardResult {
  // [num_wanted, hidden_size], after the final norm, in the memory where the ops run. The decoder owns it. It is valid until the next
  // EarlyLogits, and until the next Forward; on a device until the Forward after the next, so that one step can be launched while another
  // runs.
  const float* hidden = nullptr;
  std::vector<std::vector<float>> taps;                    // per tap layer [num_wanted, hidden_size], before any norm
  std::vector<std::vector<std::vector<float>>> attention;  // per attention layer, per wanted row [num_heads, slots up to it]
};

class Decoder {
 public:
  // spec: with the divisors of its ropes (LoadWeights).
  Decoder(ModelSpec spec, ModelWeights weights);

  const ModelSpec& spec() const { return spec_; }
  const ModelWeights& weights() const { return weights_; }

  // Allocates all memory that a Forward of num_rows rows and the logits of num_logits_rows rows need, so that no step allocates.
  void Reserve(const KernelContext& context, int64_t num_rows, int64_t num_logits_rows);

  // The number of bytes that Reserve allocates.
  static uint64_t WorkspaceBytes(const ModelSpec& spec, int64_t num_rows, int64_t num_logits_rows, bool wide_activations);

  // Runs all layers, writes K and V of the batch's rows into the cache, returns the wanted rows.
  // Not re-entrant: workspaces belong to the object.
  ForwardResult Forward(const KernelContext& context, KvCache& cache, const ForwardBatch& batch);

  // Computes the logits [num_rows, vocab_size] of hidden rows (Forward's `hidden`) and stores them on the host.
  // With a shortlist, only the logits of its tiles are defined.
  void LmHead(const KernelContext& context, const float* hidden, int64_t num_rows, float* logits, const Shortlist* shortlist = nullptr);
  // The same, stored on the context's device. The decoder owns the logits; they are valid until its next call.
  float* LogitsThere(const KernelContext& context, const float* hidden, int64_t num_rows, const Shortlist* shortlist = nullptr);
  // Computes the logits [vocab_size] of one tapped hidden state by the final norm and the head.
  void EarlyLogits(const KernelContext& context, const float* tapped, float* logits);

 private:
  struct Rows;
  static bool Replays(const KernelContext& context, const ForwardBatch& batch);
  void PlaceBatch(const KernelContext& context, KvCache& cache, const ForwardBatch& batch, int64_t num_rows);
  void FindSegments(const ForwardBatch& batch, size_t group);
  void ComputeRopes(const KernelContext& context, const std::vector<int32_t>& positions, Rows* rows);
  float* QueriesKeysValues(const KernelContext& context, int64_t layer, Rows& rows);
  void Attention(const KernelContext& context, KvCache& cache, const ForwardBatch& batch, int64_t layer, Rows& rows, ForwardResult* result);
  void Mlp(const KernelContext& context, int64_t layer, Rows& rows);
  void Tap(const KernelContext& context, const ForwardBatch& batch, const Rows& rows, int64_t layer, ForwardResult* result) const;
  void FinalNorm(const KernelContext& context, float* rows, int64_t num_rows);
  void Head(const KernelContext& context, const float* hidden, int64_t num_rows, float* out, const Shortlist* shortlist);
  // Buffers for the converted input (int8 codes, bf16) that the matrices `readers` need. The result of Input is valid until the next Input
  // with the same buffers. fine: one scale for each 16 columns (decisions/0013).
  struct FormsRoom {
    AlignedBuffer codes, scales, rounded;
  };
  LinearInput Input(const KernelContext& context, int64_t num_rows, std::initializer_list<const PackedMatrix*> readers, bool fine = false) {
    return Input(context, num_rows, readers, fine, forms_);
  }
  static LinearInput Input(const KernelContext& context, int64_t num_rows, std::initializer_list<const PackedMatrix*> readers, bool fine,
                           FormsRoom& room);

  ModelSpec spec_;
  ModelWeights weights_;
  std::vector<RopeTable> ropes_;
  AlignedBuffer x_, normed_, qkv_, attended_, gate_up_, activated_, rope_values_, hidden_, last_hidden_, logits_;
  FormsRoom forms_, activated_forms_;  // two: the input of gate and up is still read while that of down is written
  std::vector<float> host_rope_;
  std::vector<AttentionSegment> segments_;  // those of the current batch and KV group
};

}  // namespace llmi

// Rows before the masks. Most are the model's own, the raw rows. A guided sample's row is made of its own and of its companion's, and that
// of a sample with dola_layers of its own and of those that inner layers give (sampling/contrast.h). The raw row stays as it is: prompts
// are scored, log-probabilities reported and criteria called with it. Engine thread only.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/rows/host_logits.h"
#include "engine/rows/row_heads.h"
#include "engine/running.h"
#include "kernels/ops/context.h"
#include "model/decoder.h"

namespace llmi {

// One row: as the model gave it, and as it goes into the masks; the same memory where nothing is combined. Null: not on the host.
struct RowValues {
  const float* raw = nullptr;
  const float* base = nullptr;
};

class CombinedRows {
 public:
  CombinedRows(const KernelContext& context, Decoder& decoder, bool small_heads)
      : context_(context), decoder_(decoder), heads_(context, decoder, small_heads), logits_(decoder.spec().vocab_size) {}

  // The chunk's rows of logits: its own, one behind the other, then what they are combined to.
  HostLogits& logits() { return logits_; }

  // Rows of logits that a row of the step takes: its own, and one for what it is combined to.
  static int64_t NumLogitsRows(const LogitsRow& row) { return row.plan.edits.combined ? 2 : 1; }

  // Begins a chunk of the step's rows, from row `begin` on, and makes room for its logits. Returns how many companion rows follow directly
  // behind the chunk's own hidden rows: their logits may be computed with the chunk's, and then Combine(..., true).
  int64_t Begin(std::span<const LogitsRow> rows, int64_t begin);
  // On the CPU: computes the logits of the chunk's own rows, whose hidden rows are `hidden`, and of the companions that follow.
  void ComputeHeads(const float* hidden, std::span<const LogitsRow> rows, int64_t num_behind) {
    heads_.Compute(hidden, rows, num_behind, &logits_);
  }
  const RowHeads& heads() const { return heads_; }
  // Combines the chunk's rows, whose own logits are in HostLogits.
  void Combine(const LaunchedStep& step, std::span<const LogitsRow> rows, int64_t begin, bool has_companions);

  RowValues Values(size_t row) const { return {logits_.Row(static_cast<int64_t>(row)), Base(row)}; }
  // Row `row` of the chunk before the masks [vocab_size].
  const float* Base(size_t row) const { return logits_.Row(places_[row]); }

 private:
  void ContrastRow(const LaunchedStep& step, const LogitsRow& row, int64_t wanted, int64_t place, int64_t base);

  const KernelContext& context_;
  Decoder& decoder_;
  RowHeads heads_;
  HostLogits logits_;
  std::vector<int64_t> places_;  // in HostLogits, of each row of the chunk before the masks
  std::vector<float> tapped_;    // [layers, hidden_size] of one row
  std::vector<float> layers_;    // [layers, vocab_size] of one row
};

}  // namespace llmi

// Rows that are drawn on the device, or of which it finds beams' candidates, where their logits are. The logits of rows that are planned
// for the host (rows/plan.h) are copied to it; the tokens are the same bits. Engine thread only.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cache/kv_cache.h"
#include "core/aligned.h"
#include "engine/rows/host_logits.h"
#include "engine/running.h"
#include "kernels/ops/context.h"
#include "kernels/ops/top_candidates.h"
#include "model/decoder.h"
#include "sampling/edits.h"

namespace llmi {

class DeviceDraws {
 public:
  DeviceDraws(const KernelContext& context, Decoder& decoder, HostLogits& logits) : context_(context), decoder_(decoder), logits_(logits) {}

  // Runs the step's forward. If the device draws all of its rows, their draws are a part of it: the step then has its draws.
  void LaunchForward(KvCache& cache, const ForwardBatch& batch, LaunchedStep* step);
  // Computes the logits of a chunk of rows from their hidden states, launches the draws, and fetches the logits of the other rows.
  PendingDraws Launch(std::span<const LogitsRow> rows, const float* hidden);
  // Waits for the draws of a chunk. False if the device could not draw some row: the logits of that row are on the host then.
  bool Take(std::span<const LogitsRow> rows, const float* hidden, const PendingDraws& draws);
  // What the device has drawn for a row of the chunk that was taken last, or kNotDrawn. The child may be kFindChild.
  RowVerdict Drawn(size_t row) const { return row < drawn_.size() ? drawn_[row] : kNotDrawn; }
  // The likeliest tokens of a beam's row of that chunk, the likeliest first (kernels/ops/top_candidates.h). Empty: the host finds them.
  std::span<const TopCandidate> Candidates(size_t row) const { return row < candidates_.size() ? candidates_[row] : NoCandidates(); }

  int64_t num_draws() const { return num_draws_; }

 private:
  using NoCandidates = std::span<const TopCandidate>;
  float* HostRow(int64_t row);
  bool DrawsAll(std::span<const LogitsRow> rows) const;
  // Adds the draw of row `index` of a chunk.
  void AddDraw(const LogitsRow& row, size_t index, DrawList* draws, PendingDraws* pending);
  void LaunchCandidates(std::span<const LogitsRow> rows, const float* there, PendingDraws* pending);
  bool TakeDrawn(std::span<const LogitsRow> rows, const float* hidden, const PendingDraws& draws);
  bool TakeCandidates(std::span<const LogitsRow> rows, const float* hidden, const PendingDraws& draws);
  // Computes a row's logits once more, as they were before masks and penalties: the host says what is wrong with them.
  void Recompute(size_t row, const float* hidden);

  const KernelContext& context_;
  Decoder& decoder_;
  HostLogits& logits_;
  std::vector<int32_t> tokens_;    // the history of the row that AddDraw is at
  std::vector<RowVerdict> drawn_;  // by row of the chunk; empty without a device
  AlignedBuffer found_there_;      // candidates of a chunk, in the device's memory
  std::vector<TopCandidate> found_;
  std::vector<std::span<const TopCandidate>> candidates_;  // of found_, by row of the chunk
  int64_t num_draws_ = 0;
};

}  // namespace llmi

// Rows that are drawn on the device, where their logits are. The logits of rows that are planned for the host (rows/plan.h) are copied to
// it; the tokens are the same bits. Engine thread only.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/rows/host_logits.h"
#include "engine/running.h"
#include "kernels/ops/context.h"
#include "model/decoder.h"

namespace llmi {

class DeviceDraws {
 public:
  DeviceDraws(const KernelContext& context, Decoder& decoder, HostLogits& logits) : context_(context), decoder_(decoder), logits_(logits) {}

  // Computes the logits of a chunk of rows from their hidden states, launches the draws, and fetches the logits of the other rows.
  PendingDraws Launch(std::span<const LogitsRow> rows, const float* hidden);
  // Waits for the draws of a chunk. False if the device could not draw some row: the logits of that row are on the host then.
  bool Take(std::span<const LogitsRow> rows, const float* hidden, const PendingDraws& draws);
  // What the device has drawn for a row of the chunk that was taken last, or kNotDrawn. The child may be kFindChild.
  RowVerdict Drawn(size_t row) const { return row < drawn_.size() ? drawn_[row] : kNotDrawn; }

  int64_t num_draws() const { return num_draws_; }

 private:
  float* HostRow(int64_t row);

  const KernelContext& context_;
  Decoder& decoder_;
  HostLogits& logits_;
  std::vector<RowVerdict> drawn_;  // by row of the chunk; empty without a device
  int64_t num_draws_ = 0;
};

}  // namespace llmi

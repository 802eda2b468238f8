// The head of a chunk's rows on the CPU. A row whose masks allow few tokens, and of which nothing else is read (RowPlan::NeedsWholeRow),
// gets their logits alone: from the tiles that hold them, or without the head where one token is allowed. The rows have the bits of the
// whole head, masked. Whether a row is small depends on its own request, so errors do not depend on the batch either. Engine thread only.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/token_bits.h"
#include "engine/rows/host_logits.h"
#include "engine/running.h"
#include "kernels/ops/context.h"
#include "model/decoder.h"

namespace llmi {

// A head of more tiles than this share of all is computed whole: several whole rows read the matrix once (decisions/0012).
constexpr int64_t kSmallHeadShare = 4;

class RowHeads {
 public:
  RowHeads(const KernelContext& context, Decoder& decoder, bool small_heads)
      : context_(context), decoder_(decoder), small_heads_(small_heads) {}

  // Stores the logits of `rows`, whose hidden rows are `hidden`, and of `num_behind` companions, whose hidden rows follow, as rows
  // [0, rows.size() + num_behind) of `logits`, which has room for them.
  void Compute(const float* hidden, std::span<const LogitsRow> rows, int64_t num_behind, HostLogits* logits);

  // Rows of which a part of the head was computed, or nothing of it.
  int64_t num_small() const { return num_small_; }
  // Rows of which nothing of the head was computed.
  int64_t num_skipped() const { return num_skipped_; }

 private:
  // The tokens that a row's masks allow at most, as far as they are known before the head; empty: any.
  static TokenBits AllowedBy(const LogitsRow& row);
  bool IsSmall(const LogitsRow& row);

  const KernelContext& context_;
  Decoder& decoder_;
  const bool small_heads_;
  std::vector<float> gathered_;  // hidden rows: those of whole rows and companions, then the others
  int64_t num_small_ = 0;
  int64_t num_skipped_ = 0;
};

}  // namespace llmi

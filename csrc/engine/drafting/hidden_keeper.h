// Fills the hidden logs of the sequences (model/hidden_log.h). Engine thread only.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/drafting/trained_heads.h"
#include "engine/running.h"
#include "kernels/ops/context.h"
#include "model/decoder.h"

namespace llmi {

class HiddenKeeper {
 public:
  HiddenKeeper(const KernelContext& context, const Decoder& decoder, TrainedHeads& heads)
      : context_(context), decoder_(decoder), heads_(heads) {}

  // The sequence's drafter reads its log from now on.
  void AddReaders(Sample& sample);
  // The tokens that the step was given. Call it when they are committed and before the rows are processed: samples of a request begin with
  // what it keeps. A trained layer stores K and V of a prompt's tokens by it.
  void Keep(const LaunchedStep& step);
  // The accepted nodes of a piece's draft. Call it after the walk, before it ends.
  void KeepAccepted(const LaunchedStep& step, size_t piece);

 private:
  // Rows of the last forward from `row` on.
  HiddenRows RowsFrom(const HiddenLog& log, int64_t row) const;

  const KernelContext& context_;
  const Decoder& decoder_;
  TrainedHeads& heads_;
};

}  // namespace llmi

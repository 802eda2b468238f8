// What a drafter sees of the target's hidden states of one sequence.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/ops/context.h"
#include "speculative/hidden_log.h"

namespace llmi {

struct HiddenView {
  const HiddenLog* log = nullptr;
  const KernelContext* context = nullptr;  // where the rows are

  // Rows [begin, end) were not given to the drafter before. The last token has none yet.
  int64_t begin() const { return log->begin(HiddenReader::kRows); }
  int64_t end() const { return log->end(); }
  // Rows [first, last) after this layer, on the host. The last row that the log has may be read again.
  std::vector<float> Read(int layer, int64_t first, int64_t last) const { return log->Read(*context, layer, first, last); }
};

}  // namespace llmi

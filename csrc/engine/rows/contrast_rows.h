// Contrastive search between a step's forward and its head: hidden states are kept, and one candidate of each sequence is chosen by them.
// Engine thread only.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/active_requests.h"
#include "engine/running.h"
#include "kernels/ops/context.h"
#include "model/decoder.h"

namespace llmi {

class ContrastRows {
 public:
  ContrastRows(const KernelContext& context, Decoder& decoder, ActiveRequests& requests)
      : context_(context), decoder_(decoder), requests_(requests) {}

  // Sets ContrastRecord::chosen of each sequence that has candidates in this step, and removes from the step the rows whose logits nobody
  // wants: the other candidates, and prompt tokens that are not scored.
  void Choose(LaunchedStep* step);

 private:
  // rows: of one sample, from row `begin` of the step on.
  void ChooseOne(std::span<const LogitsRow> rows, const float* hidden);

  const KernelContext& context_;
  Decoder& decoder_;
  ActiveRequests& requests_;
  std::vector<float> hidden_;  // of one sample's rows, on the host
};

}  // namespace llmi

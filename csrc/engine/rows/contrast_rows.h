// Contrastive search between a step's forward and its head: hidden states are kept, and one candidate of each sequence is chosen by them.
// Engine thread only.
#pragma once

#include "engine/active_requests.h"
#include "engine/running.h"
#include "kernels/ops/context.h"
#include "model/decoder.h"

namespace llmi {

// Sets ContrastRecord::chosen of each sequence that has candidates in this step, and removes from the step the rows whose logits nobody
// wants: the other candidates, and prompt tokens that are not scored.
void ChooseCandidates(const KernelContext& context, Decoder& decoder, ActiveRequests& requests, LaunchedStep* step);

}  // namespace llmi

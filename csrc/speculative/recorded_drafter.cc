#include "speculative/recorded_drafter.h"

#include <algorithm>

namespace llmi {

void RecordedDrafter::Propose(std::span<DraftContext*> contexts) {
  for (DraftContext* context : contexts) {
    const std::vector<int32_t>& output = outputs_[static_cast<size_t>(context->sample_index)];
    const auto length = static_cast<int64_t>(output.size());
    const int64_t begin = std::min(static_cast<int64_t>(context->token_ids.size()) - context->prompt_len, length);
    const int64_t end = std::min(begin + context->max_nodes, length);
    context->draft.token_ids.assign(output.begin() + begin, output.begin() + end);
  }
}

}  // namespace llmi

#include "speculative/recorded_drafter.h"

#include <algorithm>

namespace llmi {

void RecordedDrafter::Propose(std::span<Seat> seats) {
  for (Seat& seat : seats) {
    const std::vector<int32_t>& output = outputs_[static_cast<size_t>(seat.sequence.sample_index)];
    const auto length = static_cast<int64_t>(output.size());
    const int64_t begin = std::min(static_cast<int64_t>(seat.text.token_ids.size()) - seat.text.prompt_len, length);
    const int64_t end = std::min(begin + seat.budget.max_nodes, length);
    seat.draft.token_ids.assign(output.begin() + begin, output.begin() + end);
  }
}

}  // namespace llmi

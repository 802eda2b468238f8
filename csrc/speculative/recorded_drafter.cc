#include "speculative/recorded_drafter.h"

#include <algorithm>
#include <cstddef>
#include <span>

namespace llmi {

void RecordedDrafter::Propose(std::span<Seat> seats) {
  for (Seat& seat : seats) {
    const std::vector<int32_t>& output = outputs_[static_cast<size_t>(seat.sequence.sample_index)];
    const std::span<const int32_t> drawn = seat.text.token_ids.subspan(static_cast<size_t>(seat.text.prompt_len));
    if (drawn.size() >= output.size() || !std::equal(drawn.begin(), drawn.end(), output.begin())) continue;
    const auto rest = std::span(output).subspan(drawn.size());
    const auto count = std::min(rest.size(), static_cast<size_t>(seat.budget.max_nodes));
    seat.draft.token_ids.assign(rest.begin(), rest.begin() + static_cast<std::ptrdiff_t>(count));
  }
}

}  // namespace llmi

#include "speculative/corpus_drafter.h"

#include <algorithm>
#include <iterator>
#include <vector>

namespace llmi {
namespace {

// Kind i + 1 means that the table's rate is at least kCorpusRates[i].
constexpr float kCorpusRates[] = {0.0f, 0.2f, 0.4f, 0.6f, 0.8f};
constexpr double kCorpusExpected[2][5] = {{0.05, 0.12, 0.25, 0.4, 0.6}, {0.1, 0.2, 0.35, 0.5, 0.7}};  // [greedy]
static_assert(std::size(kCorpusRates) == std::size(kCorpusExpected[0]));
constexpr double kLeastReach = 0.02;  // a token of a smaller probability is worth no row

int16_t KindOf(float rate) {
  return static_cast<int16_t>(std::upper_bound(std::begin(kCorpusRates), std::end(kCorpusRates), rate) - std::begin(kCorpusRates));
}

}  // namespace

double CorpusDrafter::expected_rate(int32_t kind, bool greedy) const {
  return kind > 0 && kind <= static_cast<int32_t>(std::size(kCorpusRates)) ? kCorpusExpected[greedy][kind - 1]
                                                                           : Drafter::expected_rate(kind, greedy);
}

void CorpusDrafter::Propose(std::span<Seat> seats) {
  const auto max_order = static_cast<size_t>(table_->max_order());
  for (Seat& seat : seats) {
    const auto last = seat.text.token_ids.last(std::min(max_order, seat.text.token_ids.size()));
    std::vector<int32_t> text(last.begin(), last.end());
    double reach = 1;
    for (int64_t i = 0; i < seat.budget.max_nodes && (seat.budget.worth == nullptr || reach > kLeastReach); ++i) {
      const CorpusTable::Guess guess = table_->Next(text);
      if (guess.token < 0) break;
      const int16_t kind = KindOf(guess.rate);
      reach *= expected_rate(kind, seat.sampling.greedy());
      text.push_back(guess.token);
      seat.draft.token_ids.push_back(guess.token);
      seat.draft.kinds.push_back({kind, -1});
    }
  }
}

}  // namespace llmi

#include "speculative/token_recycling.h"

#include <algorithm>
#include <iterator>
#include <queue>

namespace llmi {
namespace {

// How likely the target's first, second, ... choice after a token is to follow it again. The shape of trees rests on it, nothing else: the
// paper's fixed tree has about these proportions.
constexpr double kRankRates[kRecycled] = {0.35, 0.12, 0.07, 0.05, 0.035, 0.03, 0.025, 0.02};

struct RecyclingState : DrafterState {
  RecycledTokens own;
};

struct Candidate {
  double rate;  // of its whole path
  int64_t order;
  int32_t parent;
  int32_t token;
  int16_t rank;
};

// The likeliest path first, of equal ones the one that was found first.
struct Later {
  bool operator()(const Candidate& a, const Candidate& b) const { return a.rate != b.rate ? a.rate < b.rate : a.order > b.order; }
};

Draft Grow(const RecycledTokens& memory, int32_t root, int64_t max_nodes, bool chain) {
  Draft draft;
  std::priority_queue<Candidate, std::vector<Candidate>, Later> open;
  int64_t order = 0;
  const auto expand = [&](int32_t token, int32_t node, double rate) {
    const auto found = memory.find(token);
    if (found == memory.end()) return;
    const size_t width = chain ? 1 : static_cast<size_t>(kRecycled);
    for (size_t rank = 0; rank < width && found->second[rank] >= 0; ++rank) {
      open.push({rate * kRankRates[rank], order++, node, found->second[rank], static_cast<int16_t>(rank)});
    }
  };
  expand(root, -1, 1.0);
  while (!open.empty() && draft.size() < max_nodes) {
    const Candidate best = open.top();
    open.pop();
    draft.token_ids.push_back(best.token);
    draft.parents.push_back(best.parent);
    draft.kinds.push_back({best.rank, -1});
    expand(best.token, static_cast<int32_t>(draft.size()) - 1, best.rate);
  }
  return draft;
}

}  // namespace

std::unique_ptr<DrafterState> TokenRecycling::NewState(const SequenceKey& /*sequence*/, HeadSource& /*heads*/) {
  return std::make_unique<RecyclingState>();
}

double TokenRecycling::expected_rate(int32_t kind, bool /*greedy*/) const {
  return kind >= 0 && kind < kRecycled ? kRankRates[kind] : Drafter::expected_rate(kind, false);
}

void TokenRecycling::Learn(DrafterState& state, const SeenRow& row, bool shares) {
  std::array<int32_t, kRecycled> tokens;
  tokens.fill(-1);
  std::copy_n(row.likeliest.begin(), std::min(row.likeliest.size(), tokens.size()), tokens.begin());
  (shares ? shared_ : static_cast<RecyclingState&>(state).own)[row.token] = tokens;
  if (shares) num_shared_.store(static_cast<int64_t>(shared_.size()), std::memory_order_relaxed);
}

void TokenRecycling::Propose(std::span<Seat> seats) {
  for (Seat& seat : seats) {
    const RecycledTokens& memory = seat.wants.laws ? static_cast<RecyclingState*>(seat.state)->own : shared_;
    seat.draft = Grow(memory, seat.text.token_ids.back(), seat.budget.max_nodes, seat.wants.chain);
  }
}

}  // namespace llmi

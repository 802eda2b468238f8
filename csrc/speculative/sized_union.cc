#include "speculative/sized_union.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace llmi {

SizedUnion::SizedUnion(std::vector<std::shared_ptr<Drafter>> drafters) : UnionDrafter(std::move(drafters), true) {
  CheckArgument(!this->drafters().empty() && this->drafters().size() <= kMaxParts, "a sized union has 1 to 4 drafters");
}

double SizedUnion::expected_rate(int32_t kind, bool greedy) const {
  const auto part = static_cast<size_t>(kind / kPartKinds);
  return part < drafters().size() ? drafters()[part]->expected_rate(kind % kPartKinds, greedy) : Drafter::expected_rate(kind, greedy);
}

// Their kinds become the union's. proposals: by seat, then by drafter.
void SizedUnion::AskPartFor(size_t part, std::span<Seat> seats, const std::vector<size_t>& wanted,
                            std::vector<std::vector<Draft>>* proposals) const {
  const auto first_kind = static_cast<int16_t>(static_cast<int32_t>(part) * kPartKinds);
  std::vector<Draft> drafts = AskPart(part, seats, wanted, first_kind);
  for (size_t a = 0; a < wanted.size(); ++a) {
    Draft& draft = drafts[a];
    draft.kinds.resize(draft.token_ids.size());
    for (NodeKind& kind : draft.kinds) kind.first = static_cast<int16_t>(first_kind + std::min<int32_t>(kind.first, kPartKinds - 1));
    (*proposals)[wanted[a]][part] = std::move(draft);
  }
}

void SizedUnion::Propose(std::span<Seat> seats) {
  std::vector<std::vector<Draft>> proposals(seats.size(), std::vector<Draft>(drafters().size()));
  std::vector<size_t> all(seats.size());
  std::iota(all.begin(), all.end(), size_t{0});
  for (size_t part = 0; part < drafters().size(); ++part) {
    if (!drafters()[part]->traits().needs_layer) AskPartFor(part, seats, all, &proposals);
  }
  for (size_t part = 0; part < drafters().size(); ++part) {
    if (!drafters()[part]->traits().needs_layer) continue;
    std::vector<size_t> wanted;
    for (size_t i = 0; i < seats.size(); ++i) {
      const Seat& seat = seats[i];
      DraftWorth* worth = seat.budget.worth;
      if (worth == nullptr || worth->RunsHead(seat.budget.max_nodes, Merge(proposals[i], seat))) wanted.push_back(i);
    }
    AskPartFor(part, seats, wanted, &proposals);
  }
  for (size_t i = 0; i < seats.size(); ++i) seats[i].draft = Merge(proposals[i], seats[i]);
}

Draft SizedUnion::Merge(const std::vector<Draft>& drafts, const Seat& seat) const {
  size_t best = 0;
  double best_gain = -1;
  for (size_t part = 0; part < drafts.size(); ++part) {
    const Draft& draft = drafts[part];
    if (!draft.laws.empty()) return draft;
    double gain = 0;
    double reached = 1;
    for (const NodeKind& kind : draft.kinds) {
      reached *= expected_rate(kind.first, seat.sampling.greedy());
      gain += reached;
    }
    if (draft.is_chain() && gain > best_gain) {
      best_gain = gain;
      best = part;
    }
  }
  if (!seat.wants.chain) {
    return MergeDrafts(drafts, seat.budget.max_nodes * static_cast<int64_t>(drafts.size()));  // "auto" cuts it
  }
  return drafts[best].is_chain() ? drafts[best] : Draft();
}

}  // namespace llmi

// Several drafters whose nodes have kinds, as one: their drafts become one tree, of which "auto" takes the nodes that pay.
//
// Each drafter has kinds of its own, kPartKinds of them, so its acceptance is learnt apart; one that tells no kinds has kind 0. Where the
// verification takes no trees, the draft with the most expected tokens is taken. A trained drafter, whose drafts take time, is asked where
// those of the others do not suffice (DraftWorth). Where drafts are judged, its tokens are drawn: then it drafts alone, or the others do,
// and which is decided before it draws.
#pragma once

#include <memory>
#include <vector>

#include "speculative/drafter.h"

namespace llmi {

constexpr int32_t kPartKinds = 8;
constexpr size_t kMaxParts = 4;
static_assert(kPartKinds * static_cast<int32_t>(kMaxParts) == kForcedNode);

class SizedUnion : public UnionDrafter {
 public:
  // Throws Error(kInvalidArgument) for none or more than kMaxParts.
  explicit SizedUnion(std::vector<std::shared_ptr<Drafter>> drafters);
  double expected_rate(int32_t kind, bool greedy) const override;

  void Propose(std::span<Seat> seats) override;

 private:
  void AskPartFor(size_t part, std::span<Seat> seats, const std::vector<size_t>& wanted, std::vector<std::vector<Draft>>* proposals) const;
  Draft Merge(const std::vector<Draft>& drafts, const Seat& seat) const;
};

}  // namespace llmi

// Token Recycling: the target's likeliest tokens after each token, as it was last seen, give a tree of candidates (Luo et al., "Turning
// Trash into Treasure: Accelerating Inference of Large Language Models with Token Recycling", 2024).
//
// Under coupled verification all sequences share one memory. Under any other each sequence begins with an empty one and learns from its own
// rows alone.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "speculative/drafter.h"

namespace llmi {

constexpr int64_t kRecycled = 8;  // tokens that are remembered after each token

using RecycledTokens = std::unordered_map<int32_t, std::array<int32_t, kRecycled>>;  // -1: none

class TokenRecycling : public Drafter {
 public:
  // The kind of a node is its rank among the tokens behind its parent.
  TokenRecycling() : Drafter({.name = "token_recycling", .tells_kinds = true, .num_likeliest = kRecycled}) {}
  std::unique_ptr<DrafterState> NewState(const SequenceKey& sequence, HeadSource& heads) override;
  void Learn(DrafterState& state, const SeenRow& row, bool shares) override;
  double expected_rate(int32_t kind, bool greedy) const override;
  void Propose(std::span<Seat> seats) override;
  // About.
  int64_t num_bytes() const override { return 64 * num_shared_.load(std::memory_order_relaxed); }

 private:
  RecycledTokens shared_;               // engine thread only
  std::atomic<int64_t> num_shared_{0};  // its tokens
};

}  // namespace llmi

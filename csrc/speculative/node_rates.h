// The knowledge of "auto" about drafts whose nodes have kinds (Draft::kinds): how often each kind was accepted, and what drafting has cost
// and saved so far.
#pragma once

#include <array>
#include <cstdint>

#include "speculative/draft.h"

namespace llmi {

class Drafter;

// Rates of acceptance by kind. Each new node reduces the weight of the earlier ones of its kind.
class NodeRates {
 public:
  NodeRates() = default;
  // Expects what the drafter does.
  NodeRates(const Drafter& drafter, bool greedy);
  // The probability that a node is accepted if the node before it is. Two drafters that agree are taken to err independently.
  double Rate(NodeKind kind) const;
  void Add(NodeKind kind, bool accepted);
  // A node of this kind was left out: what was seen of its kind loses weight, so that it is tried again later.
  void Rest(NodeKind kind);
  // The first rates of a new sequence: the same, with the weight of a few nodes at most.
  NodeRates AsPrior() const;

 private:
  double RateOf(int16_t kind) const;
  void AddTo(int16_t kind, bool accepted);

  std::array<float, kNumNodeKinds> expected_{};
  std::array<float, kNumNodeKinds> tried_{};
  std::array<float, kNumNodeKinds> accepted_{};
};

// The rates that a trained drafter is expected to have when it is run: those of its first tokens, and of later ones where those before them
// are accepted. They follow the rates of the kinds of its tokens.
class HeadRates {
 public:
  explicit HeadRates(bool greedy = false);
  double first() const { return first_; }
  double next() const { return next_; }
  // It proposed a token whose kind has this rate.
  void Learn(bool is_first, double rate);
  // It was not run: what was seen loses weight, so that it is tried again later.
  void Rest();

 private:
  double expected_;
  double first_;
  double next_;
};

// Bounds what drafting can lose where it gains nothing. The balance is in steps without drafts: each step adds one part in two hundred, a
// draft costs what it adds to its step's time, and saves a step with each accepted token. Gains are kept only up to a limit, so that they
// cannot pay for a long loss. Where the last dozen of drafts gained, drafting goes on: a run of bad luck must not stop what pays.
class DraftBudget {
 public:
  // has_head: a trained drafter is among those that draft. Its drafts cost more, so it begins with more of them.
  explicit DraftBudget(bool has_head = false);
  void AddStep();
  void Settle(double cost, double num_saved);
  // Whether a draft of this cost may be tried. risk: the probability that it saves nothing.
  bool Allows(double cost, double risk) const { return cost * risk <= balance_ || recent_ > 0; }
  double balance() const { return balance_; }

 private:
  double most_;
  double balance_;
  double recent_ = 0;  // mean gain of the last drafts
};

}  // namespace llmi

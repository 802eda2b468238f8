// The draft that one continuation has in the step under way, and the walk over it: the node whose row decides next, and what was accepted
// so far. Engine thread only.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "kernels/ops/context.h"
#include "speculative/draft.h"

namespace llmi {

// The node whose row decides next: the root is the last committed token.
constexpr int32_t kWalkRoot = -1;
constexpr int32_t kWalkEnded = -2;
constexpr int32_t kFindChild = -3;  // in a verdict: the child that holds the drawn token, if there is one

class DraftWalk {
 public:
  // Begins a step without a draft.
  void Begin() { *this = {}; }
  // Begins the walk over this draft. observed: the drafter wants the target's log-probabilities of the nodes.
  void Begin(Draft draft, bool observed);
  // Ends the step and forgets the draft. Returns the target's log-probabilities [nodes], NaN for nodes that the walk did not reach; empty
  // if the draft is not observed.
  std::vector<float> End();

  const Draft& draft() const { return draft_; }
  bool is_observed() const { return !logprobs_.empty(); }
  // kWalkRoot, a node, or kWalkEnded.
  int32_t node() const { return node_; }
  // Whether the last token is not in the draft, so that no row of the draft follows.
  bool has_ended() const { return node_ == kWalkEnded; }
  int64_t num_accepted() const { return static_cast<int64_t>(accepted_.size()); }
  // The accepted nodes, root first.
  const std::vector<int32_t>& accepted() const { return accepted_; }
  // The node whose row the last token was drawn from.
  int32_t drawn_at() const { return drawn_at_; }

  // The child of the walk's node that holds `token`, or -1.
  int32_t ChildWith(int32_t token) const { return draft_.size() == 0 ? kWalkRoot : draft_.Child(node_, token); }
  // A token is drawn from the row of the walk's node.
  void NoteDraw() { drawn_at_ = node_; }
  // Notes the target's log-probabilities of the walk's children. law [vocab_size]: the processed law of the walk's row. token: what was
  // drawn from it. greedy: that token has all the probability.
  void NoteLogprobs(const KernelContext& context, bool greedy, std::span<const float> law, int32_t token);
  // Goes to a child, which is accepted.
  void Accept(int32_t child);
  void Stop() { node_ = kWalkEnded; }

 private:
  Draft draft_;
  std::vector<float> logprobs_;  // by node; empty: not observed
  int32_t node_ = kWalkRoot;
  std::vector<int32_t> accepted_;
  int32_t drawn_at_ = kWalkRoot;
};

}  // namespace llmi

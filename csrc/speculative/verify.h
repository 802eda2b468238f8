// Verification by acceptance and rejection: the law of what is emitted is the target's, whatever is drafted
// (Leviathan et al., 2023; Chen et al., 2023; on trees, siblings in turn against what the earlier ones left: Miao et
// al., SpecInfer, 2024). Coupled verification needs none of this: it draws as plain decoding does.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "speculative/draft.h"

namespace llmi {

// Where chance comes from: the engine keys it by position and round, tests supply it.
class VerifyNoise {
 public:
  virtual ~VerifyNoise() = default;
  // In (0, 1), for the acceptance of one node.
  virtual double Uniform(int32_t node) = 0;
  // A token from probs [vocab_size]; they need not sum to 1. after_rejection: some sibling was tried before.
  virtual int32_t Draw(std::span<const double> probs, bool after_rejection) = 0;
};

// How a node is judged. The defaults are exact; a user's own rule may be lossy.
class AcceptanceRule {
 public:
  virtual ~AcceptanceRule() = default;
  // Of the node's token; target [vocab_size] is normalised, and what earlier siblings left. draft: the law that the node
  // was drawn from; empty: a point mass.
  virtual double AcceptProbability(int32_t token, std::span<const double> target, std::span<const float> draft) const;
  // What is left of the target when the node is rejected, normalised.
  virtual void Residual(int32_t token, std::vector<double>* target, std::span<const float> draft) const;
};

struct RowVerdict {
  int32_t token = 0;
  int32_t child = -1;  // the node that holds it, or -1: the walk ends
};

// The token after `node` (-1: the root): an accepted child's, or one drawn from what is left. target: its processed law.
RowVerdict VerifyRow(const Draft& draft, int32_t node, std::vector<double> target, const AcceptanceRule& rule, VerifyNoise& noise);

}  // namespace llmi

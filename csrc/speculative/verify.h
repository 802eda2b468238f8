// Verification by acceptance and rejection: emitted tokens follow the target's law, whatever is drafted (Leviathan et al., 2023; Chen et
// al., 2023). On trees, siblings are judged one after the other, each against the residual that the earlier ones left (Miao et al.,
// SpecInfer, 2024). Coupled verification does not need this file: it draws as plain decoding does.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "speculative/draft.h"

namespace llmi {

// The source of random numbers. The engine derives them from position and round; tests supply their own.
class VerifyNoise {
 public:
  virtual ~VerifyNoise() = default;
  // A number in (0, 1) that decides the acceptance of one node.
  virtual double Uniform(int32_t node) = 0;
  // Draws a token from probs [vocab_size], which need not sum to 1. after_rejection: a drafted token of this row was rejected before.
  virtual int32_t Draw(std::span<const double> probs, bool after_rejection) = 0;
};

// The sum of the weights, added in the order of kernels/draws/verify.h.
double SumOfLaw(std::span<const double> weights);

// The rule that accepts or rejects a node. The default is exact; a user's rule may be lossy.
class AcceptanceRule {
 public:
  virtual ~AcceptanceRule() = default;
  // Whether it is the default rule, which devices can apply, too.
  virtual bool is_default() const { return true; }
  // The probability of accepting the node's token. target [vocab_size]: the residual that earlier siblings left, normalised. draft: the law
  // that the node was drawn from; empty: a point mass.
  virtual double AcceptProbability(int32_t token, std::span<const double> target, std::span<const float> draft) const;
  // Replaces target by its residual after the node is rejected, normalised.
  virtual void Residual(int32_t token, std::vector<double>* target, std::span<const float> draft) const;
};

struct RowVerdict {
  int32_t token = 0;
  int32_t child = -1;  // the accepted node that holds the token; -1: none, and the walk ends
};

// The token after `node` (-1: the root): that of an accepted child, or one drawn from the residual. target: the row's processed law.
RowVerdict VerifyRow(const Draft& draft, int32_t node, std::vector<double> target, const AcceptanceRule& rule, VerifyNoise& noise);

// --- verification of a whole draft at once

// The rows of a draft, as a judge may read them. Node -1 is the root: the row of the last committed token.
class DraftRows {
 public:
  virtual ~DraftRows() = default;
  virtual const Draft& draft() const = 0;
  virtual std::span<const int32_t> TokenIds() const = 0;  // prompt and output so far
  // The target's processed law [vocab_size] after `node`, normalised: the law that plain decoding would have on this path.
  virtual std::span<const double> Target(int32_t node) = 0;
  // Raw logits [vocab_size] after `node`.
  virtual std::span<const float> Logits(int32_t node) = 0;
  // The token that plain decoding emits after `node`.
  virtual int32_t TargetToken(int32_t node) = 0;
  // A number in (0, 1) that decides the acceptance of one node.
  virtual double Uniform(int32_t node) = 0;
  // Further random numbers in (0, 1) for the row after `node`; `lane` selects one.
  virtual double Coin(int32_t node, int32_t lane) = 0;
  // Draws the token after `node` from probs [vocab_size], which need not sum to 1.
  virtual int32_t Draw(std::span<const double> probs, int32_t node, bool after_rejection) = 0;
};

struct DraftVerdict {
  std::vector<int32_t> path;  // accepted nodes, root to leaf
  int32_t next_token = 0;     // drawn after the last of them
};

class DraftJudge {
 public:
  virtual ~DraftJudge() = default;
  // Whether it judges trees, too.
  virtual bool takes_trees() const { return true; }
  virtual DraftVerdict Judge(DraftRows& rows) const = 0;
};

// Block verification: accepts the longest beginning of a chain that the joint probabilities of its tokens allow. It is exact, and accepts
// on average at least as many tokens as verification of one token at a time (Sun et al., Block Verification Accelerates Speculative
// Decoding, 2025). Throws Error(kDraft) for a tree.
class BlockVerification : public DraftJudge {
 public:
  bool takes_trees() const override { return false; }
  DraftVerdict Judge(DraftRows& rows) const override;
};

constexpr int64_t kMaxJudgedNodes = 64;  // their rows of logits are kept together

}  // namespace llmi

// Verification by acceptance and rejection: the law of what is emitted is the target's, whatever is drafted
// (Leviathan et al., 2023; Chen et al., 2023; on trees, siblings in turn against what the earlier ones left: Miao et
// al., SpecInfer, 2024). Coupled verification needs none of this: it draws as plain decoding does.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "speculative/draft.h"

namespace llmi {

// The source of chance: the engine keys it by position and round, tests supply it.
class VerifyNoise {
 public:
  virtual ~VerifyNoise() = default;
  // In (0, 1), for the acceptance of one node.
  virtual double Uniform(int32_t node) = 0;
  // A token from probs [vocab_size]; they need not sum to 1. after_rejection: some sibling was tried before.
  virtual int32_t Draw(std::span<const double> probs, bool after_rejection) = 0;
};

// In the order of kernels/draws/verify.h.
double SumOfLaw(std::span<const double> weights);

// How a node is judged. The defaults are exact; a user's own rule may be lossy.
class AcceptanceRule {
 public:
  virtual ~AcceptanceRule() = default;
  // Whether it is the default, which devices know, too.
  virtual bool is_default() const { return true; }
  // Of the node's token; target [vocab_size] is normalised, and what earlier siblings left. draft: the law that the node
  // was drawn from; empty: a point mass.
  virtual double AcceptProbability(int32_t token, std::span<const double> target, std::span<const float> draft) const;
  // The rest of the target when the node is rejected, normalised.
  virtual void Residual(int32_t token, std::vector<double>* target, std::span<const float> draft) const;
};

struct RowVerdict {
  int32_t token = 0;
  int32_t child = -1;  // the node that holds it, or -1: the walk ends
};

// The token after `node` (-1: the root): an accepted child's, or one drawn from the rest. target: its processed law.
RowVerdict VerifyRow(const Draft& draft, int32_t node, std::vector<double> target, const AcceptanceRule& rule, VerifyNoise& noise);

// --- verification of a whole draft at once

// What a judge may look at while it judges. `node` -1 is the root: the row of the last committed token.
class DraftRows {
 public:
  virtual ~DraftRows() = default;
  virtual const Draft& draft() const = 0;
  virtual std::span<const int32_t> TokenIds() const = 0;  // prompt and output so far
  // The target's processed law [vocab_size] after `node`, as plain decoding would have it on this path; normalised.
  virtual std::span<const double> Target(int32_t node) = 0;
  // Raw logits [vocab_size] after `node`.
  virtual std::span<const float> Logits(int32_t node) = 0;
  // The token that plain decoding emits after `node`.
  virtual int32_t TargetToken(int32_t node) = 0;
  // In (0, 1), for the acceptance of one node.
  virtual double Uniform(int32_t node) = 0;
  // Other coins in (0, 1) for the row after `node`, by `lane`.
  virtual double Coin(int32_t node, int32_t lane) = 0;
  // A token from probs [vocab_size], which need not sum to 1, for the row after `node`.
  virtual int32_t Draw(std::span<const double> probs, int32_t node, bool after_rejection) = 0;
};

struct DraftVerdict {
  std::vector<int32_t> path;  // accepted nodes, root to leaf
  int32_t next_token = 0;     // drawn after the last of them
};

class DraftJudge {
 public:
  virtual ~DraftJudge() = default;
  virtual DraftVerdict Judge(DraftRows& rows) const = 0;
};

// Accepts the longest beginning of a chain that the joint law of its tokens bears: exact, and never shorter in the mean
// than one token at a time (Sun et al., Block Verification Accelerates Speculative Decoding, 2025). Trees raise
// Error(kDraft).
class BlockVerification : public DraftJudge {
 public:
  DraftVerdict Judge(DraftRows& rows) const override;
};

constexpr int64_t kMaxJudgedNodes = 64;  // their rows of logits are kept together

}  // namespace llmi

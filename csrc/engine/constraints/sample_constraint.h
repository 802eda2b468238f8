// The constraint of one continuation at work: it reads the sample's output tokens, and keeps the masks of the rows of the step under way.
// One thread at a time; ConstraintMasks gives each sample to one thread.
//
// Masks of a draft's rows are computed on forks along its paths. When tokens were accepted, the fork at the end of a whole path takes the
// sample's place; otherwise the sample reads the tokens itself. Both have done the same work, so what a constraint counts as its limits
// does not depend on drafts.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <vector>

#include "constraint/token_constraint.h"
#include "speculative/draft.h"

namespace llmi {

class SampleConstraint {
 public:
  // start: before the first output token. drops: where nothing is allowed the row has no tokens (beams); else that is an error.
  SampleConstraint(std::unique_ptr<TokenConstraint> start, bool drops);

  bool runs_user_code() const { return place_->runs_user_code(); }
  // Reads the output tokens after those that it has read, and fills the mask of the token that follows. Errors are kept for Allowed.
  void FillRoot(std::span<const int32_t> output, int64_t vocab_size);
  // Fills the masks of the tokens that follow the nodes of a draft. Call it after FillRoot. Nodes behind a forbidden token get none.
  void FillDraft(const Draft& draft);
  // Takes over another's mask of its next token; both have read the same.
  void ShareRoot(const SampleConstraint& from);
  // A copy for a sequence that begins with the same tokens. Drafts stay here.
  std::unique_ptr<SampleConstraint> Fork() const;

  // The mask of the token that follows a node of the draft, kWalkRoot for the last committed token: words [MaskWords(vocab_size)]. Empty:
  // all tokens, at a node behind a forbidden one, whose probability is 0. Throws what failed.
  std::span<const uint32_t> Allowed(int32_t node) const;
  // The same mask with its count; null where Allowed throws or gives none.
  const TokenMask* mask(int32_t node) const;
  // Finds the tokens that must follow those that FillRoot has read: `forced`. What fails is an error of the root's mask.
  void FindForced();
  const std::vector<int32_t>& forced() const { return forced_; }

 private:
  struct Row {
    TokenMask mask;
    bool filled = false;
    std::exception_ptr error;
  };
  static size_t Index(int32_t node) { return static_cast<size_t>(node + 1); }
  void Fill(TokenConstraint& place, Row& row) const;
  void FillNode(size_t node);
  void Read(std::span<const int32_t> output);
  void TakeTrial(std::span<const int32_t> output);

  const bool drops_;
  int64_t vocab_size_ = 0;
  std::unique_ptr<TokenConstraint> place_;  // after num_read_ tokens
  size_t num_read_ = 0;
  bool has_mask_ = false;  // place_ has computed its mask
  std::vector<Row> rows_;  // by node + 1
  Draft draft_;            // tokens and parents
  std::vector<int32_t> forced_;
  std::vector<std::unique_ptr<TokenConstraint>> trials_;  // by node: its place, or null if a child has taken it
};

}  // namespace llmi

#include "engine/constraints/sample_constraint.h"

#include <algorithm>
#include <bit>
#include <string>
#include <utility>

#include "core/errors.h"

namespace llmi {

SampleConstraint::SampleConstraint(std::unique_ptr<TokenConstraint> start, bool drops)
    : drops_(drops), place_(std::move(start)), rows_(1) {}

void SampleConstraint::Fill(TokenConstraint& place, Row& row) const {
  row.filled = true;
  row.error = nullptr;
  row.mask.words.resize(static_cast<size_t>(MaskWords(vocab_size_)));
  try {
    place.FillMask(row.mask.words, vocab_size_);
  } catch (...) {
    row.error = std::current_exception();
  }
  row.mask.num_allowed = 0;
  for (const uint32_t word : row.mask.words) row.mask.num_allowed += std::popcount(word);
}

// If the output goes on along a path of the draft to a node whose place is there, that place becomes this one.
void SampleConstraint::TakeTrial(std::span<const int32_t> output) {
  size_t at = num_read_;
  int32_t node = -1;
  while (at < output.size()) {
    const int32_t child = draft_.size() == 0 ? -1 : draft_.Child(node, output[at]);
    if (child < 0) break;
    node = child;
    ++at;
  }
  if (node >= 0 && trials_[static_cast<size_t>(node)] != nullptr && !rows_[Index(node)].error) {
    place_ = std::move(trials_[static_cast<size_t>(node)]);
    num_read_ = at;
    has_mask_ = rows_[Index(node)].filled;
  }
  draft_ = {};
  trials_.clear();
}

void SampleConstraint::Read(std::span<const int32_t> output) {
  TakeTrial(output);
  for (; num_read_ < output.size(); ++num_read_) {
    if (!has_mask_) {
      Row unused;
      Fill(*place_, unused);
      if (unused.error) std::rethrow_exception(unused.error);
    }
    place_->Advance(output[num_read_]);
    has_mask_ = false;
  }
}

void SampleConstraint::FillRoot(std::span<const int32_t> output, int64_t vocab_size) {
  vocab_size_ = vocab_size;
  Row& root = rows_[0];
  const bool known = root.filled && !root.error && num_read_ == output.size();
  if (known) {
    draft_ = {};
    trials_.clear();
    return;
  }
  root.filled = true;
  try {
    Read(output);
  } catch (...) {
    root.error = std::current_exception();
    return;
  }
  Fill(*place_, root);
  has_mask_ = true;
}

void SampleConstraint::FillDraft(const Draft& draft) {
  draft_.token_ids = draft.token_ids;
  draft_.parents = draft.parents;
  trials_.clear();
  trials_.resize(draft.token_ids.size());
  rows_.resize(std::max(rows_.size(), draft.token_ids.size() + 1));
  for (size_t node = 0; node < draft.token_ids.size(); ++node) FillNode(node);
}

void SampleConstraint::FillNode(size_t node) {
  Row& row = rows_[node + 1];
  row.filled = false;
  row.error = nullptr;
  const int32_t parent = draft_.parent(static_cast<int64_t>(node));
  const Row& before = rows_[Index(parent)];
  const auto token = static_cast<size_t>(draft_.token_ids[node]);
  if (!before.filled || before.error || (before.mask.words[token / 32] >> (token % 32) & 1U) == 0) return;
  try {
    const bool is_last = parent >= 0 && draft_.Children(parent).back() == static_cast<int32_t>(node);
    if (parent < 0) {
      trials_[node] = place_->Fork();
    } else if (is_last) {
      trials_[node] = std::move(trials_[static_cast<size_t>(parent)]);
    } else {
      trials_[node] = trials_[static_cast<size_t>(parent)]->Fork();
    }
    trials_[node]->Advance(draft_.token_ids[node]);
  } catch (...) {
    row.filled = true;
    row.error = std::current_exception();
    return;
  }
  Fill(*trials_[node], row);
}

void SampleConstraint::ShareRoot(const SampleConstraint& from) { rows_[0] = from.rows_[0]; }

std::unique_ptr<SampleConstraint> SampleConstraint::Fork() const {
  auto fork = std::make_unique<SampleConstraint>(place_->Fork(), drops_);
  fork->num_read_ = num_read_;
  fork->has_mask_ = has_mask_;
  fork->rows_[0] = rows_[0];
  return fork;
}

const TokenMask* SampleConstraint::mask(int32_t node) const {
  const Row& row = rows_[Index(node)];
  const bool usable = row.filled && !row.error && (drops_ || row.mask.num_allowed > 0);
  return usable ? &row.mask : nullptr;
}

std::span<const uint32_t> SampleConstraint::Allowed(int32_t node) const {
  const Row& row = rows_[Index(node)];
  if (row.error) std::rethrow_exception(row.error);
  CheckInternal(row.filled || node >= 0, "the mask of a constrained row was not filled");
  if (!row.filled) return {};
  if (row.mask.num_allowed == 0 && !drops_) {
    throw Error(ErrorKind::kConstraint, "the constraint allows no token after " + std::to_string(num_read_) + " tokens, and is not final",
                "structured_outputs");
  }
  return row.mask.words;
}

void SampleConstraint::FindForced() {
  forced_.clear();
  const TokenMask* root = mask(-1);
  if (root == nullptr || root->num_allowed != 1) return;
  try {
    forced_ = place_->Forced(kMaxDraftNodes);
  } catch (...) {
    rows_[0].error = std::current_exception();
  }
}

}  // namespace llmi

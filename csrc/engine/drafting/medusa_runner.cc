#include "engine/drafting/medusa_runner.h"

#include <algorithm>

#include "kernels/dispatch/transfer.h"
#include "model/workspace.h"

namespace llmi {

void MedusaRunner::Propose(std::span<Seat> seats, std::span<const TreeNode> tree) {
  const int64_t hidden = decoder_.spec().hidden_size;
  const auto num_layers = static_cast<int>(decoder_.spec().num_layers());
  float* rows = Floats(context_, rows_, static_cast<int64_t>(seats.size()) * hidden);
  std::vector<HeadTree> trees;
  for (Seat& seat : seats) {
    const HiddenLog& log = *seat.hidden.log;
    const auto last = static_cast<int64_t>(seat.text.token_ids.size()) - 2;  // the last token has no row yet
    if (seat.budget.max_depth < 1 || log.end() != last + 1) continue;
    CopyThere(context_, rows + static_cast<int64_t>(trees.size()) * hidden, log.Row(num_layers, last), FloatBytes(hidden));
    trees.emplace_back(&seat, tree, std::min(seat.budget.max_depth, heads_->num_heads()));
  }
  if (trees.empty()) return;
  decoder_.FinalNorm(context_, rows, static_cast<int64_t>(trees.size()));
  GrowTrees(context_, *this, heads_->shortlist(), decoder_.spec().vocab_size, &trees);
}

std::vector<std::span<const float>> MedusaRunner::Behind(const std::vector<HeadTree>& trees, const std::vector<TreeFront>& front) {
  const auto begins = [&](size_t f) { return f == 0 || front[f].tree != front[f - 1].tree; };
  std::vector<const float*> rows;
  for (size_t f = 0; f < front.size(); ++f) {
    if (begins(f)) rows.push_back(rows_.as<float>() + static_cast<int64_t>(front[f].tree) * decoder_.spec().hidden_size);
  }
  const HeadTree& first = trees[front[0].tree];
  const int64_t depth = front[0].node < 0 ? 0 : first.depths[static_cast<size_t>(first.places[static_cast<size_t>(front[0].node)])];
  heads_->Logits(context_, decoder_, rows, depth, &logits_);
  const size_t num_choices = logits_.size() / rows.size();
  std::vector<std::span<const float>> logits;
  size_t num_begun = 0;
  for (size_t f = 0; f < front.size(); ++f) {
    if (begins(f)) ++num_begun;
    logits.push_back(std::span(logits_).subspan((num_begun - 1) * num_choices, num_choices));
  }
  return logits;
}

}  // namespace llmi

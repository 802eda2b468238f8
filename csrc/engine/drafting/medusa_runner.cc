#include "engine/drafting/medusa_runner.h"

#include <algorithm>
#include <utility>

#include "engine/drafting/draft_choice.h"
#include "kernels/dispatch/transfer.h"
#include "model/medusa.h"
#include "model/workspace.h"

namespace llmi {
namespace {

int64_t CountChildren(const std::vector<TreeNode>& nodes, int32_t parent) {
  return std::ranges::count_if(nodes, [&](const TreeNode& node) { return node.parent == parent; });
}

}  // namespace

// row: of the step's forward.
void MedusaRunner::KeepRow(Sample& sample, int64_t row) {
  const int64_t hidden = decoder_.spec().hidden_size;
  LastRow& last = sample.drafting.last_row();
  last.position = sample.scheduled.kv.num_tokens - 1;
  last.values.resize(static_cast<size_t>(hidden));
  ToHost(context_, last.values.data(), decoder_.stream() + row * hidden, FloatBytes(hidden));
}

void MedusaRunner::BeforeRows(const LaunchedStep& step) {
  starting_.clear();
  if (decoder_.medusa() == nullptr) return;
  for (size_t i = 0; i < step.piece_rows.size(); ++i) {
    const ScheduledPiece& piece = step.pieces[i];
    Sample& sample = *piece.sequence->owner;
    const bool draws = piece.sequence->kv.num_tokens == piece.sequence->num_tokens;
    if (sample.finished || piece.num_new == 0 || !draws || !Serves(sample.request())) continue;
    if (!sample.started && sample.running->samples.size() > 1) starting_.push_back(sample.running);
    KeepRow(sample, step.piece_rows[i] + piece.num_new - 1);
  }
}

void MedusaRunner::AfterRows(const LaunchedStep& step) {
  if (decoder_.medusa() == nullptr) return;
  for (size_t i = 0; i < step.piece_rows.size(); ++i) {
    const ScheduledPiece& piece = step.pieces[i];
    Sample& sample = *piece.sequence->owner;
    if (sample.finished || sample.walk.draft().size() == 0 || !Serves(sample.request())) continue;
    if (const int32_t node = sample.walk.drawn_at(); node >= 0) KeepRow(sample, step.piece_rows[i] + piece.num_new + node);
  }
  for (const Running* running : std::exchange(starting_, {})) {
    for (size_t i = 1; i < running->samples.size(); ++i) {
      if (running->samples[i]->started) running->samples[i]->drafting.last_row() = running->samples[0]->drafting.last_row();
    }
  }
}

std::vector<MedusaRunner::Guessed> MedusaRunner::Begin(std::span<Seat> seats, std::span<const TreeNode> tree) const {
  std::vector<Guessed> guessed;
  for (Seat& seat : seats) {
    Sample& sample = static_cast<SampleHeadState*>(seat.state)->sample;
    const auto last = static_cast<int64_t>(sample.tokens.size()) - 2;  // the last token has no row yet
    if (seat.budget.max_depth < 1 || sample.drafting.last_row().position != last) continue;
    std::vector<TreeNode> nodes = seat.wants.chain ? ChainOf(tree) : std::vector<TreeNode>(tree.begin(), tree.end());
    nodes.resize(static_cast<size_t>(std::min(static_cast<int64_t>(nodes.size()), seat.budget.max_nodes)));
    const int64_t max_depth = std::min(seat.budget.max_depth, decoder_.medusa()->num_heads());
    const std::vector<int32_t> places(nodes.size(), -1);
    guessed.push_back({&seat, &sample, std::move(nodes), max_depth, places, {}, {-1}});
  }
  return guessed;
}

void MedusaRunner::Propose(std::span<Seat> seats, std::span<const TreeNode> tree) {
  std::vector<Guessed> guessed = Begin(seats, tree);
  const int64_t hidden = decoder_.spec().hidden_size;
  std::vector<float> rows;
  for (const Guessed& sequence : guessed) {
    const std::vector<float>& row = sequence.sample->drafting.last_row().values;
    rows.insert(rows.end(), row.begin(), row.end());
  }
  if (!guessed.empty()) decoder_.NormTapped(context_, rows.data(), static_cast<int64_t>(guessed.size()));
  for (int64_t depth = 0; depth < decoder_.medusa()->num_heads(); ++depth) {
    std::vector<Guessed*> growing;
    std::vector<float> inputs;
    for (size_t i = 0; i < guessed.size(); ++i) {
      if (guessed[i].front.empty() || depth >= guessed[i].max_depth) continue;
      growing.push_back(&guessed[i]);
      const auto row = rows.begin() + static_cast<int64_t>(i) * hidden;
      inputs.insert(inputs.end(), row, row + hidden);
    }
    if (growing.empty()) break;
    decoder_.medusa()->Logits(context_, decoder_, inputs, depth, &logits_);
    const size_t num_choices = logits_.size() / growing.size();
    for (size_t i = 0; i < growing.size(); ++i) Grow(*growing[i], std::span(logits_).subspan(i * num_choices, num_choices));
  }
  for (Guessed& sequence : guessed) sequence.seat->draft.parents = std::move(sequence.parents);
}

void MedusaRunner::Grow(Guessed& guessed, std::span<const float> logits) const {
  Draft& draft = guessed.seat->draft;
  const Sample& sample = *guessed.sample;
  const KernelContext host = {context_.table, context_.pool, context_.num_threads};
  const bool depends_on_path = DependsOnPath(sample.request().params);
  int64_t most = 0;
  for (const int32_t parent : guessed.front) most = std::max(most, CountChildren(guessed.nodes, parent));
  std::vector<int32_t> front;
  DraftChoices chosen;
  for (size_t f = 0; f < guessed.front.size(); ++f) {
    const int32_t parent = guessed.front[f];
    const int32_t parent_place = parent < 0 ? -1 : guessed.places[static_cast<size_t>(parent)];
    if (f == 0 || depends_on_path) {
      DraftChoice choice(*guessed.seat);
      const size_t num_known = choice.token_ids.size();
      for (int32_t place = parent_place; place >= 0; place = guessed.parents[static_cast<size_t>(place)]) {
        choice.token_ids.push_back(draft.token_ids[static_cast<size_t>(place)]);
      }
      std::reverse(choice.token_ids.begin() + static_cast<int64_t>(num_known), choice.token_ids.end());
      chosen = ChooseTokens(host, choice, decoder_.medusa()->shortlist(), logits, decoder_.spec().vocab_size, most);
    }
    for (size_t i = 0; i < guessed.nodes.size(); ++i) {
      const auto rank = static_cast<size_t>(guessed.nodes[i].rank);
      if (guessed.nodes[i].parent != parent || rank >= chosen.token_ids.size()) continue;
      guessed.places[i] = static_cast<int32_t>(draft.size());
      guessed.parents.push_back(parent_place);
      draft.token_ids.push_back(chosen.token_ids[rank]);
      if (guessed.seat->wants.laws) draft.laws.push_back(chosen.laws[rank]);
      if (CountChildren(guessed.nodes, static_cast<int32_t>(i)) > 0) front.push_back(static_cast<int32_t>(i));
    }
  }
  guessed.front = std::move(front);
}

}  // namespace llmi

#include <algorithm>
#include <set>
#include <utility>

#include "speculative/drafter.h"

namespace llmi {
namespace {

struct UnionState : DrafterState {
  std::vector<std::unique_ptr<DrafterState>> states;
};

}  // namespace

UnionDrafter::UnionDrafter(std::vector<std::shared_ptr<Drafter>> drafters) : drafters_(std::move(drafters)) {
  std::set<int> layers;
  for (const auto& drafter : drafters_) layers.insert(drafter->hidden_layers().begin(), drafter->hidden_layers().end());
  hidden_layers_.assign(layers.begin(), layers.end());
}

std::string UnionDrafter::name() const {
  std::string name;
  for (const auto& drafter : drafters_) {
    if (!name.empty()) name += '+';
    name += drafter->name();
  }
  return name;
}

double UnionDrafter::expected_acceptance(int32_t /*confidence*/) const {
  double best = 0;
  for (const auto& drafter : drafters_) best = std::max(best, drafter->expected_acceptance(0));
  return best;
}

std::unique_ptr<DrafterState> UnionDrafter::NewState(uint64_t request_id, int64_t sample_index) {
  auto state = std::make_unique<UnionState>();
  for (const auto& drafter : drafters_) state->states.push_back(drafter->NewState(request_id, sample_index));
  return state;
}

int64_t UnionDrafter::num_likeliest() const {
  int64_t most = 0;
  for (const auto& drafter : drafters_) most = std::max(most, drafter->num_likeliest());
  return most;
}

void UnionDrafter::Learn(DrafterState& state, const SeenRow& row, bool shares) {
  for (size_t i = 0; i < drafters_.size(); ++i) {
    const auto wanted = static_cast<size_t>(drafters_[i]->num_likeliest());
    if (wanted == 0) continue;
    SeenRow own = row;
    own.likeliest = row.likeliest.first(std::min(wanted, row.likeliest.size()));
    drafters_[i]->Learn(*static_cast<UnionState&>(state).states[i], own, shares);
  }
}

bool UnionDrafter::needs_head() const {
  return std::any_of(drafters_.begin(), drafters_.end(), [](const auto& drafter) { return drafter->needs_head(); });
}

bool UnionDrafter::needs_last_row() const {
  return std::any_of(drafters_.begin(), drafters_.end(), [](const auto& drafter) { return drafter->needs_last_row(); });
}

bool UnionDrafter::wants_observe() const {
  return std::any_of(drafters_.begin(), drafters_.end(), [](const auto& drafter) { return drafter->wants_observe(); });
}

void UnionDrafter::Observe(uint64_t request_id, int64_t sample_index, int64_t num_accepted, std::span<const float> target_logprobs) {
  for (const auto& drafter : drafters_) {
    if (drafter->wants_observe()) drafter->Observe(request_id, sample_index, num_accepted, target_logprobs);
  }
}

std::vector<Draft> UnionDrafter::AskPart(size_t part, std::span<DraftContext*> contexts, int16_t first_kind) const {
  std::vector<DraftContext> own;
  std::vector<DraftContext*> pointers;
  own.reserve(contexts.size());
  for (DraftContext* context : contexts) {
    own.push_back(*context);
    own.back().draft = {};
    own.back().first_kind = first_kind;
    own.back().state = static_cast<UnionState*>(context->state)->states[part].get();
  }
  for (DraftContext& context : own) pointers.push_back(&context);
  if (!pointers.empty()) drafters_[part]->Propose(pointers);
  std::vector<Draft> drafts;
  for (size_t i = 0; i < contexts.size(); ++i) {
    if (own[i].error && !contexts[i]->error) contexts[i]->error = own[i].error;
    drafts.push_back(std::move(own[i].draft));
  }
  return drafts;
}

void UnionDrafter::Propose(std::span<DraftContext*> contexts) {
  std::vector<std::vector<Draft>> proposals(contexts.size());
  for (size_t d = 0; d < drafters_.size(); ++d) {
    std::vector<Draft> drafts = AskPart(d, contexts, 0);
    for (size_t i = 0; i < contexts.size(); ++i) {
      if (!drafts[i].laws.empty() && !contexts[i]->error) {
        contexts[i]->error = Error(ErrorKind::kDraft, "a union of drafters needs verification 'coupled' where one of them draws (" +
                                                          drafters_[d]->name() + " gave draft_probs)");
      }
      proposals[i].push_back(std::move(drafts[i]));
    }
  }
  for (size_t i = 0; i < contexts.size(); ++i) contexts[i]->draft = MergeDrafts(proposals[i], contexts[i]->max_nodes);
}

}  // namespace llmi

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include "speculative/drafter.h"

namespace llmi {
namespace {

struct UnionState : DrafterState {
  std::vector<std::unique_ptr<DrafterState>> states;
};

DrafterTraits TraitsOf(const std::vector<std::shared_ptr<Drafter>>& drafters, bool tells_kinds) {
  DrafterTraits traits = {.name = "", .expected_acceptance = 0, .tells_kinds = tells_kinds};
  std::set<int> layers;
  for (const auto& drafter : drafters) {
    const DrafterTraits& own = drafter->traits();
    traits.name += (traits.name.empty() ? "" : "+") + own.name;
    traits.expected_acceptance = std::max(traits.expected_acceptance, own.expected_acceptance);
    traits.num_likeliest = std::max(traits.num_likeliest, own.num_likeliest);
    traits.observes = traits.observes || own.observes;
    traits.needs_layer = traits.needs_layer || own.needs_layer;
    traits.needs_last_row = traits.needs_last_row || own.needs_last_row;
    layers.insert(own.hidden_layers.begin(), own.hidden_layers.end());
  }
  traits.hidden_layers.assign(layers.begin(), layers.end());
  return traits;
}

}  // namespace

UnionDrafter::UnionDrafter(std::vector<std::shared_ptr<Drafter>> drafters, bool tells_kinds)
    : Drafter(TraitsOf(drafters, tells_kinds)), drafters_(std::move(drafters)) {}

std::unique_ptr<DrafterState> UnionDrafter::NewState(const SequenceKey& sequence, HeadSource& heads) {
  auto state = std::make_unique<UnionState>();
  for (const auto& drafter : drafters_) state->states.push_back(drafter->NewState(sequence, heads));
  return state;
}

void UnionDrafter::Learn(DrafterState& state, const SeenRow& row, bool shares) {
  for (size_t i = 0; i < drafters_.size(); ++i) {
    const auto wanted = static_cast<size_t>(drafters_[i]->traits().num_likeliest);
    if (wanted == 0) continue;
    SeenRow own = row;
    own.likeliest = row.likeliest.first(std::min(wanted, row.likeliest.size()));
    drafters_[i]->Learn(*static_cast<UnionState&>(state).states[i], own, shares);
  }
}

void UnionDrafter::Observe(const SequenceKey& sequence, int64_t num_accepted, std::span<const float> target_logprobs) {
  for (const auto& drafter : drafters_) {
    if (drafter->traits().observes) drafter->Observe(sequence, num_accepted, target_logprobs);
  }
}

std::vector<Draft> UnionDrafter::AskPart(size_t part, std::span<Seat> seats, std::span<const size_t> asked, int16_t first_kind) const {
  std::vector<Seat> own;
  for (const size_t i : asked) {
    own.push_back(seats[i]);
    own.back().draft = {};
    own.back().first_kind = first_kind;
    own.back().state = static_cast<UnionState*>(seats[i].state)->states[part].get();
  }
  if (!own.empty()) drafters_[part]->Propose(own);
  std::vector<Draft> drafts;
  for (size_t a = 0; a < asked.size(); ++a) {
    if (own[a].error && !seats[asked[a]].error) seats[asked[a]].error = own[a].error;
    drafts.push_back(std::move(own[a].draft));
  }
  return drafts;
}

void UnionDrafter::Propose(std::span<Seat> seats) {
  std::vector<std::vector<Draft>> proposals(seats.size());
  std::vector<size_t> all(seats.size());
  std::iota(all.begin(), all.end(), size_t{0});
  for (size_t part = 0; part < drafters_.size(); ++part) {
    std::vector<Draft> drafts = AskPart(part, seats, all, 0);
    for (size_t i = 0; i < seats.size(); ++i) {
      if (!drafts[i].laws.empty() && !seats[i].error) {
        seats[i].error = Error(ErrorKind::kDraft, "a union of drafters needs verification 'coupled' where one of them draws (" +
                                                      drafters_[part]->traits().name + " gave draft_probs)");
      }
      proposals[i].push_back(std::move(drafts[i]));
    }
  }
  for (size_t i = 0; i < seats.size(); ++i) seats[i].draft = MergeDrafts(proposals[i], seats[i].budget.max_nodes);
}

}  // namespace llmi

#include "speculative/forced_drafter.h"

#include <map>
#include <mutex>
#include <utility>

namespace llmi {
namespace {

constexpr double kForcedRate = 0.99;  // a text that ends or stops inside leaves the rest unused

// The part of a draft that agrees with forced tokens as deep as these go: nothing else can come there.
Draft Agreeing(const Draft& draft, const std::vector<int32_t>& forced) {
  Draft kept;
  std::vector<int32_t> place(draft.token_ids.size(), -1);
  const std::vector<int32_t> depths = draft.Depths();
  for (size_t i = 0; i < place.size(); ++i) {
    const int32_t parent = draft.parent(static_cast<int64_t>(i));
    if (parent >= 0 && place[static_cast<size_t>(parent)] < 0) continue;
    const auto depth = static_cast<size_t>(depths[i]);
    if (depth <= forced.size() && draft.token_ids[i] != forced[depth - 1]) continue;
    place[i] = static_cast<int32_t>(kept.size());
    kept.token_ids.push_back(draft.token_ids[i]);
    if (!draft.kinds.empty()) kept.kinds.push_back(draft.kinds[i]);
    kept.parents.push_back(parent < 0 ? -1 : place[static_cast<size_t>(parent)]);
  }
  return kept;
}

// A user's draft may be longer than its drafter says: forced tokens join it.
DrafterTraits TraitsWith(const Drafter* drafter) {
  if (drafter == nullptr) return {.name = "forced", .expected_acceptance = kForcedRate, .tells_kinds = true};
  DrafterTraits traits = drafter->traits();
  traits.most_nodes = DrafterTraits().most_nodes;
  return traits;
}

}  // namespace

ForcedDrafter::ForcedDrafter(std::shared_ptr<Drafter> drafter) : Drafter(TraitsWith(drafter.get())), drafter_(std::move(drafter)) {}

std::shared_ptr<Drafter> ForcedDrafter::With(const std::shared_ptr<Drafter>& drafter) {
  static std::mutex mutex;
  static auto* known = new std::map<const Drafter*, std::weak_ptr<Drafter>>();
  const std::lock_guard lock(mutex);
  std::erase_if(*known, [](const auto& entry) { return entry.second.expired(); });
  std::weak_ptr<Drafter>& entry = (*known)[drafter.get()];
  std::shared_ptr<Drafter> joined = entry.lock();
  if (joined == nullptr) {
    joined = std::make_shared<ForcedDrafter>(drafter);
    entry = joined;
  }
  return joined;
}

std::unique_ptr<DrafterState> ForcedDrafter::NewState(const SequenceKey& sequence, HeadSource& heads) {
  return drafter_ == nullptr ? Drafter::NewState(sequence, heads) : drafter_->NewState(sequence, heads);
}

double ForcedDrafter::expected_rate(int32_t kind, bool greedy) const {
  return kind == kForcedNode || drafter_ == nullptr ? kForcedRate : drafter_->expected_rate(kind, greedy);
}

void ForcedDrafter::Propose(std::span<Seat> seats) {
  if (drafter_ != nullptr) drafter_->Propose(seats);
  for (Seat& seat : seats) {
    const bool keeps_own = !seat.draft.laws.empty() || (traits().observes && seat.draft.size() > 0);
    if (seat.text.forced.empty() || keeps_own || seat.error) continue;
    Draft forced;
    forced.token_ids = seat.text.forced;
    if (traits().tells_kinds) forced.kinds.assign(forced.token_ids.size(), NodeKind{kForcedNode, -1});
    seat.draft = MergeDrafts({std::move(forced), Agreeing(seat.draft, seat.text.forced)}, seat.budget.max_nodes);
  }
}

}  // namespace llmi

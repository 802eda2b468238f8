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

}  // namespace

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

std::string ForcedDrafter::name() const { return drafter_ == nullptr ? "forced" : drafter_->name(); }

std::unique_ptr<DrafterState> ForcedDrafter::NewState(uint64_t request_id, int64_t sample_index) {
  return drafter_ == nullptr ? std::make_unique<DrafterState>() : drafter_->NewState(request_id, sample_index);
}

double ForcedDrafter::expected_acceptance(int32_t confidence) const {
  if (confidence == kForcedConfidence || drafter_ == nullptr) return kForcedRate;
  return drafter_->expected_acceptance(confidence);
}

double ForcedDrafter::expected_rate(int32_t kind, bool greedy) const {
  return kind == kForcedNode || drafter_ == nullptr ? kForcedRate : drafter_->expected_rate(kind, greedy);
}

void ForcedDrafter::Propose(std::span<DraftContext*> contexts) {
  if (drafter_ != nullptr) drafter_->Propose(contexts);
  for (DraftContext* context : contexts) {
    const bool keeps_own = !context->draft.laws.empty() || (wants_observe() && context->draft.size() > 0);
    if (context->forced.empty() || keeps_own || context->error) continue;
    Draft forced;
    forced.token_ids = context->forced;
    if (tells_kinds()) forced.kinds.assign(forced.token_ids.size(), NodeKind{kForcedNode, -1});
    context->draft = MergeDrafts({std::move(forced), Agreeing(context->draft, context->forced)}, context->max_nodes);
    if (tells_confidence()) context->confidence = kForcedConfidence;
  }
}

void ForcedDrafter::Observe(uint64_t request_id, int64_t sample_index, int64_t num_accepted, std::span<const float> target_logprobs) {
  drafter_->Observe(request_id, sample_index, num_accepted, target_logprobs);
}

}  // namespace llmi

#include "speculative/sized_union.h"

#include <algorithm>
#include <utility>

namespace llmi {

SizedUnion::SizedUnion(std::vector<std::shared_ptr<Drafter>> drafters) : UnionDrafter(std::move(drafters)) {
  CheckArgument(!this->drafters().empty() && this->drafters().size() <= kMaxParts, "a sized union has 1 to 4 drafters");
}

double SizedUnion::expected_rate(int32_t kind, bool greedy) const {
  const auto part = static_cast<size_t>(kind / kPartKinds);
  return part < drafters().size() ? drafters()[part]->expected_rate(kind % kPartKinds, greedy) : Drafter::expected_rate(kind, greedy);
}

Draft SizedUnion::Merge(std::vector<Draft> drafts, const DraftContext& context) const {
  size_t best = 0;
  double best_gain = -1;
  for (size_t part = 0; part < drafts.size(); ++part) {
    Draft& draft = drafts[part];
    draft.kinds.resize(draft.token_ids.size());
    double gain = 0;
    double reached = 1;
    for (NodeKind& kind : draft.kinds) {
      kind.first = static_cast<int16_t>(static_cast<int32_t>(part) * kPartKinds + std::min<int32_t>(kind.first, kPartKinds - 1));
      reached *= expected_rate(kind.first, context.greedy);
      gain += reached;
    }
    if (draft.is_chain() && gain > best_gain) {
      best_gain = gain;
      best = part;
    }
  }
  if (!context.wants_chain) {
    return MergeDrafts(drafts, context.max_nodes * static_cast<int64_t>(drafts.size()));  // "auto" cuts it
  }
  return drafts[best].is_chain() ? std::move(drafts[best]) : Draft();
}

}  // namespace llmi

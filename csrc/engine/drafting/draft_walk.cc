#include "engine/drafting/draft_walk.h"

#include <limits>
#include <utility>

#include "kernels/ops/vocab.h"

namespace llmi {

void DraftWalk::Begin(Draft draft, bool observed) {
  Begin();
  draft_ = std::move(draft);
  if (observed) logprobs_.assign(static_cast<size_t>(draft_.size()), std::numeric_limits<float>::quiet_NaN());
}

std::vector<float> DraftWalk::End() {
  draft_ = {};
  return std::exchange(logprobs_, {});
}

void DraftWalk::NoteLogprobs(const KernelContext& context, bool greedy, std::span<const float> law, int32_t token) {
  const float total = greedy ? 0.0f : LogSumExp(context, law.data(), static_cast<int64_t>(law.size()));
  for (int32_t node : draft_.Children(node_)) {
    const int32_t id = draft_.token_ids[static_cast<size_t>(node)];
    float& logprob = logprobs_[static_cast<size_t>(node)];
    logprob = greedy ? (id == token ? 0.0f : -std::numeric_limits<float>::infinity()) : law[static_cast<size_t>(id)] - total;
  }
}

void DraftWalk::Accept(int32_t child) {
  node_ = child;
  accepted_.push_back(child);
}

}  // namespace llmi

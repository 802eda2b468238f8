#include "model/expert_use.h"

#include <algorithm>
#include <utility>

namespace llmi {

ExpertUse::ExpertUse(const ModelSpec& spec) : taken_(spec.layers.size()), last_(spec.layers.size()) {
  int64_t before = 0;
  for (const LayerSpec& layer : spec.layers) {
    const int64_t num_experts = layer.moe.num_experts;
    counts_.uses.emplace_back(static_cast<size_t>(num_experts));
    counts_.with_last.emplace_back(static_cast<size_t>(before * num_experts));
    counts_.reads.push_back(0);
    num_used_.push_back(layer.moe.num_used);
    before = num_experts;
  }
}

int64_t ExpertUse::TakeReads(int64_t layer) {
  const auto index = static_cast<size_t>(layer);
  return counts_.reads[index] - std::exchange(taken_[index], counts_.reads[index]);
}

void ExpertUse::Count(int64_t layer, int64_t row, const ExpertPairs& pairs) {
  const auto index = static_cast<size_t>(layer);
  const auto num_used = static_cast<size_t>(pairs.num_used);
  std::vector<int32_t>& own = last_[index];
  own.resize(static_cast<size_t>(row + pairs.num_rows) * num_used);
  std::copy_n(pairs.experts, pairs.num_pairs(), own.begin() + row * pairs.num_used);
  std::vector<int64_t>& uses = counts_.uses[index];
  for (int64_t i = 0; i < pairs.num_experts; ++i) {
    const int64_t count = pairs.first[i + 1] - pairs.first[i];
    uses[static_cast<size_t>(i)] += count;
    counts_.reads[index] += count > 0 ? 1 : 0;
  }
  std::vector<int64_t>& both = counts_.with_last[index];
  if (both.empty() || last_[index - 1].empty()) return;  // the layer before is another stage's
  const auto before_used = static_cast<size_t>(num_used_[index - 1]);
  for (int64_t i = row; i < row + pairs.num_rows; ++i) {
    for (size_t b = 0; b < before_used; ++b) {
      const auto before = static_cast<size_t>(last_[index - 1][static_cast<size_t>(i) * before_used + b]);
      int64_t* counts = both.data() + before * static_cast<size_t>(pairs.num_experts);
      for (int64_t k = 0; k < pairs.num_used; ++k) ++counts[own[static_cast<size_t>(i * pairs.num_used + k)]];
    }
  }
}

}  // namespace llmi

#include "kernels/ops/attention_weights.h"

#include <algorithm>

#include "core/scalar_math.h"
#include "kernels/layout/kv_elements.h"
#include "kernels/ops/attention_score.h"

namespace llmi {
namespace {

// Slots that the row sees, ascending: sinks, cached ones inside the window, its ancestors, itself.
std::vector<int64_t> VisibleSlots(const AttentionArgs& args, const AttentionSegment& segment, int64_t row) {
  const int64_t first = AttentionFirstSeen(args, segment, segment.row_begin + row);
  const int64_t sinks = AttentionSinksSeen(args, segment, segment.row_begin + row);
  const auto sees = [&](int64_t position) { return position >= first || position < sinks; };
  std::vector<int64_t> slots;
  for (int64_t slot = 0; slot < segment.base_len; ++slot) {
    if (sees(slot)) slots.push_back(slot);
  }
  std::vector<int64_t> own;
  for (int64_t node = row; node >= 0; node = segment.parents == nullptr ? node - 1 : segment.parents[node]) {
    if (sees(args.positions[segment.row_begin + node])) own.push_back(segment.base_len + node);
  }
  slots.insert(slots.end(), own.rbegin(), own.rend());
  return slots;
}

int64_t PositionOf(const AttentionArgs& args, const AttentionSegment& segment, int64_t slot) {
  return slot < segment.base_len ? slot : args.positions[segment.row_begin + slot - segment.base_len];
}

}  // namespace

std::vector<float> AttentionWeights(const AttentionArgs& args, const AttentionSegment& segment, int64_t row) {
  const KvView& kv = args.kv;
  const int64_t length = SlotSeen(segment, 0, segment.base_len + row) + 1;
  std::vector<float> weights(static_cast<size_t>(args.num_heads * length), 0.0f);
  const std::vector<int64_t> slots = VisibleSlots(args, segment, row);
  std::vector<double> scores(slots.size());
  for (int64_t head = 0; head < args.num_heads; ++head) {
    const float* query = args.q + (segment.row_begin + row) * args.q_stride + head * kv.head_dim;
    const int64_t kv_head = head / (args.num_heads / kv.num_kv_heads);
    for (size_t i = 0; i < slots.size(); ++i) {
      const uint8_t* tile = KvTile(kv, segment.block_table, kv_head, SlotSeen(segment, kv_head, slots[i]));
      const int64_t position = PositionOf(args, segment, slots[i]);
      scores[i] = static_cast<double>(FinishedScore(args, head, position, KvScore(kv, tile, slots[i], query)));
    }
    double largest = *std::max_element(scores.begin(), scores.end());
    double total = 0;
    if (args.sinks != nullptr) {
      const auto sink = static_cast<double>(args.sinks[head]);
      largest = std::max(largest, sink);
      total = ExpF64(sink - largest);
    }
    for (double& score : scores) total += score = ExpF64(score - largest);
    for (size_t i = 0; i < slots.size(); ++i) {
      const int64_t slot = SlotSeen(segment, kv_head, slots[i]);
      weights[static_cast<size_t>(head * length + slot)] = static_cast<float>(scores[i] / total);
    }
  }
  return weights;
}

}  // namespace llmi

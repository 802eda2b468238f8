#include "model/rank_plan.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/errors.h"

namespace llmi {
namespace {

enum class RowRule : uint8_t { kWhole, kQueries, kKeys, kMixerHeads, kMixerGroups, kHidden, kInner, kVocabulary, kNone };

bool EndsWith(const std::string& text, const char* end) { return text.ends_with(end); }

// By the matrix's path in the spec. A matrix that is not named here has no rule, so a new kind of layer is refused until it has one.
RowRule RuleOf(const std::string& place) {
  if (place == "embedding.weight" || place == "head.weight") return RowRule::kVocabulary;
  if (place == kPositionsPlace || place == kTokenTypesPlace) return RowRule::kWhole;
  for (const char* end : {".attention.query.weight", ".attention.gate.weight", ".latent.query.weight", ".latent.query_rotary.weight"}) {
    if (EndsWith(place, end)) return RowRule::kQueries;
  }
  for (const char* end : {".attention.key.weight", ".attention.value.weight"}) {
    if (EndsWith(place, end)) return RowRule::kKeys;
  }
  for (const char* end : {".recurrence.value.weight", ".recurrence.gate.weight", ".recurrence.time.weight", ".recurrence.write.weight"}) {
    if (EndsWith(place, end)) return RowRule::kMixerHeads;
  }
  for (const char* end : {".recurrence.query.weight", ".recurrence.key.weight"}) {
    if (EndsWith(place, end)) return RowRule::kMixerGroups;
  }
  for (const char* end : {".attention.output.weight", ".recurrence.output.weight", ".short_conv.output.weight", ".mlp.down.weight",
                          ".moe.expert.down.weight"}) {
    if (EndsWith(place, end)) return RowRule::kHidden;
  }
  for (const char* end : {".mlp.gate.weight", ".mlp.up.weight", ".moe.expert.gate.weight", ".moe.expert.up.weight"}) {
    if (EndsWith(place, end)) return RowRule::kInner;
  }
  for (const char* end : {".moe.router.linear.weight", ".moe.shared_gate.weight", ".latent.query_down.weight", ".latent.latent.weight",
                          ".latent.rotary.weight", ".latent.key_up", ".latent.value_up", ".short_conv.input.weight"}) {
    if (EndsWith(place, end)) return RowRule::kWhole;
  }
  return RowRule::kNone;
}

std::vector<double> BordersOf(int num_ranks, const std::vector<double>& split) {
  std::vector<double> borders = {0.0};
  if (split.empty()) {
    for (int rank = 1; rank < num_ranks; ++rank) borders.push_back(static_cast<double>(rank) / num_ranks);
  } else {
    double sum = 0;
    for (const double share : split) {
      CheckArgument(std::isfinite(share) && share > 0, "tensor_split: each rank has a share above 0");
      borders.push_back(sum += share);
    }
    if (static_cast<int>(split.size()) != num_ranks || std::abs(sum - 1.0) > 1e-6) {
      throw Error(ErrorKind::kInvalidArgument,
                  "tensor_split has " + std::to_string(split.size()) + " shares of sum " + std::to_string(sum) + ": give " +
                      std::to_string(num_ranks) + " (tensor_parallel_size) of sum 1",
                  "tensor_split");
    }
    borders.pop_back();
  }
  borders.push_back(1.0);
  return borders;
}

// Of so many heads each rank has a multiple, so that its channels of the convolution are one of 16.
int64_t MixerUnit(const RecurrenceSpec& mixer) {
  const bool shared = mixer.tiled_groups || mixer.num_groups == 1;  // each rank with heads has all groups
  if (shared && 2 * mixer.num_groups * mixer.key_size % 16 != 0) return mixer.num_heads;
  const int64_t least = mixer.tiled_groups ? mixer.num_groups : mixer.num_groups == 1 ? 1 : mixer.num_heads / mixer.num_groups;
  const int64_t channels = least * mixer.value_size + (shared ? 0 : 2 * mixer.key_size);
  return least * (16 / std::gcd<int64_t>(channels, 16));
}

}  // namespace

RankPlan::RankPlan(const ModelSpec& spec, int num_ranks, const std::vector<double>& split)
    : hidden_size_(spec.hidden_size), vocab_size_(spec.vocab_size) {
  const int64_t most = NumTiles(hidden_size_);
  if (num_ranks < 1 || num_ranks > most) {
    throw Error(ErrorKind::kInvalidArgument,
                "tensor_parallel_size = " + std::to_string(num_ranks) + ": this model's rows of " + std::to_string(hidden_size_) +
                    " values have " + std::to_string(most) + " tiles of 16, so at most as many ranks share them",
                "tensor_parallel_size");
  }
  borders_ = BordersOf(num_ranks, split);
  for (const LayerSpec& layer : spec.layers) {
    attentions_.push_back(layer.attention);
    mixers_.push_back(layer.recurrence);
  }
  for (const AttentionSpec& attention : attentions_) {
    if (attention.kv_donor < 0) continue;
    const AttentionSpec& donor = attentions_[static_cast<size_t>(attention.kv_donor)];
    if (donor.num_heads == attention.num_heads) continue;  // each rank has the keys that its queries read
    throw Error(ErrorKind::kUnsupportedModel,
                "tensor_parallel_size = " + std::to_string(num_ranks) +
                    ": a layer reads the keys of one with another number of query heads, which cannot be split: load the model on one rank",
                "kv_donor");
  }
  for (const TensorSlot& slot : TensorSlotsOf(spec)) {
    if (!slot.is_matrix() || RuleOf(slot.place) != RowRule::kNone) continue;
    throw Error(ErrorKind::kUnsupportedModel,
                "tensor_parallel_size = " + std::to_string(num_ranks) + ": there is no rule to split " + slot.place + " (tensor '" +
                    slot.binding.name + "') over ranks: load the model on one",
                slot.place);
  }
}

RowSpan RankPlan::Cut(int64_t count, int64_t unit, int rank) const {
  const auto units = static_cast<double>((count + unit - 1) / unit);
  const auto border = [&](int number) {
    return std::min<int64_t>(count, std::llround(borders_[static_cast<size_t>(number)] * units) * unit);
  };
  return {border(rank), border(rank + 1)};
}

RowSpan RankPlan::QueryHeads(const AttentionSpec& attention, int rank) const {
  const int64_t heads = attention.num_heads, keys = attention.num_kv_heads;
  return keys == 0 ? RowSpan{} : Cut(heads, num_ranks() <= keys ? heads / keys : 1, rank);
}

RowSpan RankPlan::KvHeads(const AttentionSpec& attention, int rank) const {
  const RowSpan queries = QueryHeads(attention, rank);
  if (queries.size() == 0) return {};
  const int64_t each = attention.num_heads / attention.num_kv_heads;
  return {queries.begin / each, (queries.end + each - 1) / each};
}

// Of the slot's place, as "layers[3].attention.query.weight".
size_t RankPlan::LayerOf(const TensorSlot& slot) {
  const std::string before = "layers[";
  CheckInternal(slot.place.starts_with(before), "heads are a layer's");
  return std::stoul(slot.place.substr(before.size()));
}

RowSpan RankPlan::MixerHeads(const RecurrenceSpec& mixer, int rank) const { return Cut(mixer.num_heads, MixerUnit(mixer), rank); }

RowSpan RankPlan::MixerGroups(const RecurrenceSpec& mixer, int rank) const {
  const RowSpan heads = MixerHeads(mixer, rank);
  if (heads.size() == 0) return {};
  if (mixer.tiled_groups || mixer.num_groups == 1) return {0, mixer.num_groups};
  const int64_t each = mixer.num_heads / mixer.num_groups;
  return {heads.begin / each, heads.end / each};
}

int RankPlan::VocabularyOwner(int64_t token_id) const {
  int rank = 0;
  while (Vocabulary(rank).end <= token_id) ++rank;
  return rank;
}

RowSpan RankPlan::Rows(const TensorSlot& slot, int rank) const {
  const int64_t of_one = slot.num_experts > 0 ? slot.padded_head_rows : slot.packed_rows();
  const auto heads = [&](const RowSpan& span, int64_t num_heads) {
    return RowSpan{span.begin * of_one / num_heads, span.end * of_one / num_heads};
  };
  std::string place = slot.place;
  if (slot.num_experts > 0 && EndsWith(place, ".bias")) place.replace(place.size() - 4, 4, "weight");  // experts' biases go with their rows
  switch (RuleOf(place)) {
    case RowRule::kQueries: return heads(QueryHeads(AttentionOf(slot), rank), AttentionOf(slot).num_heads);
    case RowRule::kKeys: return heads(KvHeads(AttentionOf(slot), rank), AttentionOf(slot).num_kv_heads);
    case RowRule::kMixerHeads: {
      const RecurrenceSpec& mixer = MixerOf(static_cast<int64_t>(LayerOf(slot)));
      return heads(MixerHeads(mixer, rank), mixer.num_heads);
    }
    case RowRule::kMixerGroups: {
      const RecurrenceSpec& mixer = MixerOf(static_cast<int64_t>(LayerOf(slot)));
      return heads(MixerGroups(mixer, rank), mixer.num_groups);
    }
    case RowRule::kHidden: return Hidden(rank);
    case RowRule::kInner: return Inner(slot.num_experts > 0 ? slot.head_rows : slot.num_rows, rank);
    case RowRule::kVocabulary: return Vocabulary(rank);
    case RowRule::kWhole:
    case RowRule::kNone: return {0, of_one};
  }
  return {0, of_one};
}

}  // namespace llmi

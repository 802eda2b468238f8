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

constexpr char kBeforeLayer[] = "layers[";

int64_t LayerOfPlace(const std::string& place) {
  const std::string before = kBeforeLayer;
  return place.starts_with(before) ? std::stol(place.substr(before.size())) : -1;
}

// What a row costs in each layer, and in the embedding and the head together: parameters that it meets.
struct Costs {
  std::vector<double> layers;
  double outside = 0;
};

Costs CostsOf(const ModelSpec& spec) {
  Costs costs{std::vector<double>(spec.layers.size()), 0};
  for (const TensorSlot& slot : TensorSlotsOf(spec)) {
    if (!slot.is_matrix() || (slot.place == "embedding.weight" && !spec.tied_head()) || slot.place == kPositionsPlace) continue;
    double cost = static_cast<double>(slot.num_rows) * static_cast<double>(slot.num_cols);
    const int64_t layer = LayerOfPlace(slot.place);
    if (slot.num_experts > 0) {
      const MoeSpec& moe = spec.layers[static_cast<size_t>(layer)].moe;
      cost *= static_cast<double>(moe.num_used) / static_cast<double>(moe.num_experts);
    }
    (layer < 0 ? costs.outside : costs.layers[static_cast<size_t>(layer)]) += cost;
  }
  return costs;
}

// Borders of stages: the slowest stage is as fast as can be. A layer is in the stage of the one whose keys it reads.
std::vector<int64_t> LayerBordersOf(const ModelSpec& spec, int num_stages) {
  const auto num_layers = static_cast<size_t>(spec.num_layers());
  std::vector<bool> may_cut(num_layers + 1, true);
  size_t num_cuts = num_layers;
  for (size_t layer = 0; layer < num_layers; ++layer) {
    const int64_t donor = spec.layers[layer].attention.kv_donor;
    for (auto cut = static_cast<size_t>(std::max<int64_t>(donor, 0)) + 1; donor >= 0 && cut <= layer; ++cut) {
      if (may_cut[cut]) --num_cuts;
      may_cut[cut] = false;
    }
  }
  if (num_stages < 1 || static_cast<size_t>(num_stages) > num_cuts) {
    throw Error(ErrorKind::kInvalidArgument,
                "pipeline_parallel_size = " + std::to_string(num_stages) + ": this model has " + std::to_string(num_cuts) +
                    " layers, or groups of layers that share keys, so at most as many stages",
                "pipeline_parallel_size");
  }
  const Costs costs = CostsOf(spec);
  const auto stages = static_cast<size_t>(num_stages);
  // slowest[s][i]: of the best division of layers [0, i) over s + 1 stages; from[s][i]: where its last stage begins.
  std::vector<std::vector<double>> slowest(stages, std::vector<double>(num_layers + 1, HUGE_VAL));
  std::vector<std::vector<size_t>> from(stages, std::vector<size_t>(num_layers + 1));
  double first = costs.outside;
  for (size_t end = 1; end <= num_layers; ++end) slowest[0][end] = first += costs.layers[end - 1];
  for (size_t stage = 1; stage < stages; ++stage) {
    for (size_t end = stage + 1; end <= num_layers; ++end) {
      double last = 0;
      for (size_t begin = end - 1; begin >= stage; --begin) {
        last += costs.layers[begin];
        const double time = std::max(slowest[stage - 1][begin], last);
        if (!may_cut[begin] || time >= slowest[stage][end]) continue;
        slowest[stage][end] = time;
        from[stage][end] = begin;
      }
    }
  }
  std::vector<int64_t> borders(stages + 1, static_cast<int64_t>(num_layers));
  for (size_t stage = stages - 1; stage > 0; --stage)
    borders[stage] = static_cast<int64_t>(from[stage][static_cast<size_t>(borders[stage + 1])]);
  borders[0] = 0;
  return borders;
}

}  // namespace

RankPlan::RankPlan(const ModelSpec& spec, int num_ranks, const std::vector<double>& split, int stage, int num_stages)
    : hidden_size_(spec.hidden_size), vocab_size_(spec.vocab_size), stage_(stage), layer_borders_(LayerBordersOf(spec, num_stages)) {
  CheckArgument(stage >= 0 && stage < num_stages, "stages: this number is not one of them");
  if (num_stages > 1 && spec.two_sided) {
    throw Error(ErrorKind::kUnsupportedModel, "pipeline_parallel_size: a two-sided model is not divided over stages: load it in one",
                "pipeline_parallel_size");
  }
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
                (num_stages > 1 ? "pipeline_parallel_size = " + std::to_string(num_stages)
                                : "tensor_parallel_size = " + std::to_string(num_ranks)) +
                    ": there is no rule to split " + slot.place + " (tensor '" + slot.binding.name + "') over ranks: load the model on one",
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
  const int64_t layer = LayerOfPlace(slot.place);
  CheckInternal(layer >= 0, "heads are a layer's");
  return static_cast<size_t>(layer);
}

RowSpan RankPlan::MixerHeads(const RecurrenceSpec& mixer, int rank) const { return Cut(mixer.num_heads, MixerUnit(mixer), rank); }

RowSpan RankPlan::MixerGroups(const RecurrenceSpec& mixer, int rank) const {
  const RowSpan heads = MixerHeads(mixer, rank);
  if (heads.size() == 0) return {};
  if (mixer.tiled_groups || mixer.num_groups == 1) return {0, mixer.num_groups};
  const int64_t each = mixer.num_heads / mixer.num_groups;
  return {heads.begin / each, heads.end / each};
}

RankPlan RankPlan::AtStage(int stage) const {
  RankPlan plan = *this;
  plan.stage_ = stage;
  return plan;
}

bool RankPlan::HoldsSlot(const TensorSlot& slot) const {
  const int64_t layer = LayerOfPlace(slot.place);
  return layer < 0 ? stage_ == 0 : Holds(layer);
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
  if (!HoldsSlot(slot)) return {};
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

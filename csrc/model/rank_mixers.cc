#include "model/rank_mixers.h"

#include <algorithm>
#include <initializer_list>

#include "kernels/dispatch/transfer.h"
#include "model/recurrence_layer.h"

namespace llmi {
namespace {

// Columns of a vector's rows of `width` values.
WeightVector Columns(const KernelContext& context, const WeightVector& vector, int64_t num_rows, int64_t width,
                     std::initializer_list<RowSpan> columns) {
  if (vector.empty()) return {};
  std::vector<float> whole(static_cast<size_t>(num_rows * width));
  ToHost(context, whole.data(), vector.data(), whole.size() * sizeof(float));
  std::vector<float> own;
  for (int64_t row = 0; row < num_rows; ++row) {
    for (const RowSpan& span : columns) {
      own.insert(own.end(), whole.begin() + row * width + span.begin, whole.begin() + row * width + span.end);
    }
  }
  return own.empty() ? WeightVector() : WeightVector(context, own);
}

RowSpan Scaled(const RowSpan& span, int64_t size, int64_t begin) { return {begin + span.begin * size, begin + span.end * size}; }

}  // namespace

void TakeOwnHeads(const KernelContext& context, const Ranks& ranks, ModelSpec* spec, ModelWeights* weights) {
  for (size_t i = 0; i < spec->layers.size(); ++i) {
    LayerSpec& layer = spec->layers[i];
    if (!layer.has_recurrence()) continue;
    const RecurrenceShape whole = ShapeOf(layer);
    RecurrenceSpec& mixer = layer.recurrence;
    const RowSpan heads = ranks.plan().MixerHeads(mixer, ranks.rank()), groups = ranks.plan().MixerGroups(mixer, ranks.rank());
    const RowSpan values = Scaled(heads, whole.value_size, whole.value());
    const RowSpan queries = Scaled(groups, whole.key_size, whole.query()), keys = Scaled(groups, whole.key_size, whole.key());
    LayerWeights& own = weights->layers[i];
    const auto conv = [&](WeightVector* vector, int64_t num_rows) {
      *vector = whole.is_delta ? Columns(context, *vector, num_rows, whole.channels(), {queries, keys, values})
                               : Columns(context, *vector, num_rows, whole.channels(), {values, keys, queries});
    };
    conv(&own.conv_weight, mixer.conv.length);
    conv(&own.conv_bias, 1);
    for (WeightVector* vector : {&own.recurrence.time_bias, &own.recurrence.decay, &own.recurrence.skip}) {
      *vector = Columns(context, *vector, 1, whole.num_heads, {heads});
    }
    mixer.num_heads = heads.size();
    mixer.num_groups = groups.size();
  }
}

float* GatherMixed(const LayerPass& pass, int64_t layer, const float* mixed) {
  const RankPlan& plan = pass.ranks->plan();
  const RecurrenceSpec& mixer = plan.MixerOf(layer);
  const auto span = [&](int rank) { return Scaled(plan.MixerHeads(mixer, rank), mixer.value_size, 0); };
  const int64_t width = mixer.num_heads * mixer.value_size;
  const RowSpan own = span(pass.ranks->rank());
  float* whole = Floats(pass.context, pass.workspace.own, pass.num_rows * width);
  if (own.size() > 0) CopyColumns(pass.context, mixed, own.size(), pass.num_rows, own.size(), whole + own.begin, width);
  pass.ranks->GatherColumns(whole, pass.num_rows, width, span);
  return whole;
}

void GatherFaults(const Ranks& ranks, std::vector<uint8_t>* faults) {
  const size_t count = faults->size();
  std::vector<uint8_t> all(count * static_cast<size_t>(ranks.plan().num_ranks()));
  std::vector<RankGroup::Block> blocks;
  for (int rank = 0; rank < ranks.plan().num_ranks(); ++rank) {
    blocks.push_back({rank, rank * static_cast<int64_t>(count), static_cast<int64_t>(count)});
  }
  std::copy(faults->begin(), faults->end(), all.begin() + ranks.rank() * static_cast<int64_t>(count));
  ranks.group().Gather(all.data(), blocks);
  for (size_t i = 0; i < all.size(); ++i) (*faults)[i % count] |= all[i];
}

}  // namespace llmi

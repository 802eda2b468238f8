#include "engine/rows/combined_rows.h"

#include <algorithm>

#include "core/thread_pool.h"
#include "engine/sizing.h"
#include "sampling/contrast.h"

namespace llmi {

int64_t CombinedRows::Begin(std::span<const LogitsRow> rows, int64_t begin) {
  places_.clear();
  const auto count = static_cast<int64_t>(rows.size());
  int64_t next = count;
  int64_t num_behind = 0;
  // Companions first: their logits come in one piece.
  for (int64_t i = 0; i < count; ++i) {
    const LogitsRow& row = rows[static_cast<size_t>(i)];
    places_.push_back(row.companion < 0 ? i : next++);
    if (row.companion == begin + count + num_behind) ++num_behind;
  }
  if (num_behind < next - count) num_behind = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].plan.edits.combined && rows[i].companion < 0) places_[i] = next++;
  }
  logits_.Reserve(next);
  logits_.SetPlaces({});
  return num_behind;
}

void CombinedRows::Combine(const LaunchedStep& step, std::span<const LogitsRow> rows, int64_t begin, bool has_companions) {
  const int64_t vocab_size = logits_.vocab_size();
  std::vector<size_t> guided;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].companion >= 0) guided.push_back(i);
  }
  if (!guided.empty() && !has_companions) {
    const float* hidden = step.result.hidden + rows[guided[0]].companion * decoder_.spec().hidden_size;
    decoder_.LmHead(context_, hidden, static_cast<int64_t>(guided.size()), logits_.Row(places_[guided[0]]));
  }
  const KernelContext each = {context_.table, context_.pool, guided.size() == 1 ? context_.num_threads : 1};
  context_.pool->ParallelFor(static_cast<int64_t>(guided.size()), context_.num_threads, [&](int64_t task) {
    const size_t row = guided[static_cast<size_t>(task)];
    const double scale = rows[row].sample->request().params.guidance_scale;
    Guide(each, logits_.Row(static_cast<int64_t>(row)), scale, logits_.Row(places_[row]), vocab_size);
  });
  for (size_t i = 0; i < rows.size(); ++i) {
    const LogitsRow& row = rows[i];
    if (!row.plan.edits.combined || row.companion >= 0 || row.sample->finished) continue;
    const auto own = static_cast<int64_t>(i);
    ContrastRow(step, row, begin + own, own, places_[i]);
  }
}

// wanted: index of the row among those of the forward. place, base: of its own logits and of the result, in HostLogits.
void CombinedRows::ContrastRow(const LaunchedStep& step, const LogitsRow& row, int64_t wanted, int64_t place, int64_t base) {
  const SamplingParams& params = row.sample->request().params;
  const int64_t vocab_size = logits_.vocab_size();
  const int64_t hidden_size = decoder_.spec().hidden_size;
  const auto num_layers = static_cast<int64_t>(params.dola_layers.size());
  tapped_.clear();
  for (const int layer : params.dola_layers) {
    const auto tap = std::find(step.tap_layers.begin(), step.tap_layers.end(), layer) - step.tap_layers.begin();
    const float* values = step.result.taps[static_cast<size_t>(tap)].data() + wanted * hidden_size;
    tapped_.insert(tapped_.end(), values, values + hidden_size);
  }
  layers_.resize(static_cast<size_t>(num_layers * vocab_size));
  const int64_t at_once = LogitsRowsAtOnce(vocab_size, context_.device != nullptr);
  for (int64_t first = 0; first < num_layers; first += at_once) {
    const int64_t count = std::min(at_once, num_layers - first);
    decoder_.TapLogits(context_, tapped_.data() + first * hidden_size, count, !params.dola_transformers,
                       layers_.data() + first * vocab_size);
  }
  ContrastLayers(context_, logits_.Row(place), layers_, params.dola_transformers, logits_.Row(base), vocab_size);
}

}  // namespace llmi

#include "model/workspace.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "kernels/dispatch/device.h"
#include "model/mixer.h"
#include "model/position_values.h"

namespace llmi {
namespace {

using Sizes = std::vector<std::pair<AlignedBuffer Workspace::*, int64_t>>;

// The most that any layer needs.
template <typename SizeOf>
int64_t Most(const ModelSpec& spec, const SizeOf& size_of) {
  int64_t most = 0;
  for (const LayerSpec& layer : spec.layers) most = std::max<int64_t>(most, size_of(layer));
  return most;
}

// The most values that an MLP has for its rows, or the experts for their pairs; size_of(MlpSpec): of one.
template <typename SizeOf>
int64_t MostInner(const ModelSpec& spec, int64_t num_rows, const SizeOf& size_of) {
  return Most(spec, [&](const LayerSpec& layer) {
    return std::max<int64_t>(num_rows * size_of(layer.mlp), ExpertRows(layer.moe, num_rows) * size_of(layer.moe.expert));
  });
}

// The most values that a projection back to the stream reads.
int64_t MostActivated(const ModelSpec& spec, int64_t mlp_rows) {
  const int64_t inner = MostInner(spec, mlp_rows, [](const MlpSpec& mlp) { return mlp.size; });
  return std::max(inner, mlp_rows * spec.layer_embedding.size);
}

// The fp32 buffers and their numbers of values; 0: the model does not use it.
Sizes FloatSizes(const ModelSpec& spec, int64_t num_rows, int64_t num_logits_rows, bool on_device) {
  const int64_t stream = num_rows * spec.hidden_size;
  const int64_t mlp_rows = std::min(num_rows, MostMlpRows(on_device));
  const int64_t parallel = Most(spec, [](const LayerSpec& layer) { return layer.order == LayerOrder::kParallel ? 1 : 0; });
  const int64_t projected = Most(spec, [&](const LayerSpec& layer) {
    return layer.has_attention() ? ProjectedSize(layer.attention) : MixerProjectedSize(spec, layer);
  });
  const int64_t mixed = Most(spec, [&](const LayerSpec& layer) { return MixerOutputSize(spec, layer); });
  const int64_t attended = Most(spec, [](const LayerSpec& layer) { return layer.has_attention() ? layer.attention.query_size() : 0; });
  const int64_t packed = Most(spec, [](const LayerSpec& layer) {
    const AttentionSpec& attention = layer.attention;
    const bool differs = attention.padded_head_dim() != attention.head_dim || attention.has_latent();
    return differs ? HeadValues(attention) : 0;
  });
  const int64_t queries =
      Most(spec, [](const LayerSpec& layer) { return layer.attention.has_latent() ? layer.attention.query_size() : 0; });
  const int64_t layer_values = spec.layer_embedding.num_places * spec.layer_embedding.size;
  return {
      {&Workspace::stream, stream},
      {&Workspace::normed, stream},
      {&Workspace::hidden, stream},
      {&Workspace::kept, parallel * stream},
      {&Workspace::projected, num_rows * std::max(projected, layer_values)},
      {&Workspace::layer_rows, num_rows * layer_values},
      {&Workspace::queries, num_rows * queries},
      {&Workspace::attended, num_rows * std::max(mixed, attended)},
      {&Workspace::packed, num_rows * packed},
      {&Workspace::query_latent, num_rows * Most(spec, [](const LayerSpec& layer) { return layer.attention.latent.query_rank; })},
      {&Workspace::by_head,
       2 * std::min(num_rows, kHeadRows) * Most(spec, [](const LayerSpec& layer) { return ByHeadSize(layer.attention); })},
      {&Workspace::gate_up, std::max(MostInner(spec, mlp_rows, GateUpSize), mlp_rows * spec.layer_embedding.size)},
      {&Workspace::activated, MostActivated(spec, mlp_rows)},
      {&Workspace::router, Most(spec, [&](const LayerSpec& layer) { return layer.has_experts() ? RouterFloats(layer.moe, mlp_rows) : 0; })},
      {&Workspace::pairs, Most(spec, [&](const LayerSpec& layer) { return layer.has_experts() ? PairIntegers(layer.moe, mlp_rows) : 0; })},
      {&Workspace::gathered, Most(spec, [&](const LayerSpec& layer) { return ExpertRows(layer.moe, mlp_rows); }) * spec.hidden_size},
      {&Workspace::mixed, Most(spec, [&](const LayerSpec& layer) { return layer.has_experts() ? mlp_rows : 0; }) * spec.hidden_size},
      {&Workspace::position_values, num_rows * PositionValues::FloatsPerRow(spec)},
      {&Workspace::logits, num_logits_rows * spec.vocab_size},
  };
}

// The forms of what attention, its output and gate and up read, and of what down reads.
std::vector<std::pair<FormsRoom Workspace::*, int64_t>> FormSizes(const ModelSpec& spec, int64_t num_rows, bool on_device) {
  const int64_t mixed = Most(spec, [&](const LayerSpec& layer) { return MixerOutputSize(spec, layer); });
  const int64_t head_values = Most(spec, [](const LayerSpec& layer) { return HeadValues(layer.attention); });
  const int64_t query_rank = Most(spec, [](const LayerSpec& layer) { return layer.attention.latent.query_rank; });
  const int64_t most_columns = std::max({spec.hidden_size, head_values, query_rank, mixed});
  const int64_t mlp_rows = std::min(num_rows, MostMlpRows(on_device));
  const int64_t by_head = std::min(num_rows, kHeadRows) * Most(spec, [](const LayerSpec& layer) { return ByHeadSize(layer.attention); });
  const int64_t most_pairs = Most(spec, [&](const LayerSpec& layer) { return ExpertRows(layer.moe, mlp_rows); });
  return {{&Workspace::forms, num_rows * most_columns},
          {&Workspace::activated_forms, MostActivated(spec, mlp_rows)},
          {&Workspace::gathered_forms, std::max(most_pairs * spec.hidden_size, by_head)}};
}

}  // namespace

int64_t GateSize(const AttentionSpec& attention) {
  if (attention.gate_kind == GateKind::kNone) return 0;
  return attention.gate_kind == GateKind::kHead ? attention.num_heads : attention.query_size();
}

int64_t HeadValues(const AttentionSpec& attention) {
  return attention.num_heads * (attention.has_latent() ? attention.latent.value_size : attention.head_dim);
}

int64_t ProjectedSize(const AttentionSpec& attention) {
  const LatentSpec& latent = attention.latent;
  if (attention.has_latent()) {
    return attention.num_heads * (latent.key_size + latent.rotary_size) + attention.head_dim + latent.query_rank;
  }
  const int64_t num_keys = attention.kv_donor < 0 ? 2 * attention.num_kv_heads : 0;
  return (attention.num_heads + num_keys) * attention.padded_head_dim() + GateSize(attention);
}

float* Floats(const KernelContext& context, AlignedBuffer& buffer, int64_t count) {
  buffer.Reserve(FloatBytes(count), "activations", context.device);
  return buffer.as<float>();
}

void Workspace::Reserve(const KernelContext& context, const ModelSpec& spec, int64_t num_rows, int64_t num_logits_rows) {
  const bool on_device = context.device != nullptr;
  for (const auto& [buffer, count] : FloatSizes(spec, num_rows, num_logits_rows, on_device)) {
    if (count > 0) Floats(context, this->*buffer, count);
  }
  for (const auto& [room, count] : FormSizes(spec, num_rows, on_device)) {
    (this->*room).codes.Reserve(static_cast<size_t>(NumCodeBytes(count, context.wide_activations)), "activations", context.device);
    Floats(context, (this->*room).scales, ScaleFloats(count));
  }
  if (!on_device) return;
  int64_t most_values = 0;
  constexpr int64_t kRows = 32;  // which devices may round together
  for (const auto& [room, count] : FormSizes(spec, (num_rows + kRows - 1) / kRows * kRows, true)) {
    most_values = std::max(most_values, count);
  }
  Floats(context, hidden_in_turn, num_rows * spec.hidden_size);
  context.device->ReserveInputs(most_values);
}

uint64_t Workspace::Bytes(const ModelSpec& spec, int64_t num_rows, int64_t num_logits_rows, bool wide_activations, bool on_device) {
  uint64_t bytes = 0;
  for (const auto& [buffer, count] : FloatSizes(spec, num_rows, num_logits_rows, on_device)) bytes += FloatBytes(count);
  for (const auto& [room, count] : FormSizes(spec, num_rows, on_device)) {
    bytes += FloatBytes(ScaleFloats(count)) + static_cast<uint64_t>(NumCodeBytes(count, wide_activations));
  }
  return bytes;
}

}  // namespace llmi

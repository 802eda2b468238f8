#include "model/decoder.h"

#include <algorithm>
#include <utility>

#include "core/errors.h"
#include "kernels/dispatch/transfer.h"
#include "kernels/ops/attention_weights.h"
#include "kernels/ops/embedding.h"
#include "kernels/ops/gated_linear.h"
#include "kernels/ops/linear.h"
#include "kernels/ops/norm.h"
#include "kernels/ops/rope.h"
#include "kernels/ops/vocab.h"

namespace llmi {
namespace {

// The MLP runs for this many rows at a time: its intermediate values then stay in the L2 cache, and the workspace stays small.
constexpr int64_t kMlpRows = 256;

// A device replays recorded steps of kMaxReplayedRows rows or fewer.
constexpr int64_t kMaxReplayedRows = 256;

// The number of rows of the recording that serves a step of num_rows rows. There are few such sizes, so one recording serves many steps.
int64_t ReplayedRows(int64_t num_rows) {
  if (num_rows > 8) return (num_rows + 7) / 8 * 8;
  int64_t padded = 1;
  while (padded < num_rows) padded *= 2;
  return padded;
}

float* ReserveFloats(const KernelContext& context, AlignedBuffer& buffer, int64_t count) {
  buffer.Reserve(static_cast<size_t>(count) * sizeof(float), "activations", context.device);
  return buffer.as<float>();
}

// Codes of one byte, or of two: all high bytes, then all low ones.
int64_t CodeBytes(int64_t num_values, bool wide) { return wide ? 2 * num_values : num_values; }

size_t FloatBytes(int64_t count) { return static_cast<size_t>(count) * sizeof(float); }

// One segment's part of a layer's cache, fetched from a device.
struct FetchedSegment {
  std::vector<uint8_t> pages;
  std::vector<int32_t> table;
  KvView kv;
};

FetchedSegment FetchSegment(const KernelContext& context, const KvView& kv, const AttentionSegment& segment) {
  FetchedSegment fetched;
  const int64_t num_blocks = (segment.base_len + segment.num_rows + kv.block_size - 1) / kv.block_size;
  const int64_t layer_bytes = KvLayerBlockBytes(kv.block_size, kv.num_kv_heads, kv.head_dim, kv.type);
  fetched.pages.resize(static_cast<size_t>(num_blocks * layer_bytes));
  for (int64_t block = 0; block < num_blocks; ++block) {
    fetched.table.push_back(static_cast<int32_t>(block));
    const int32_t page = segment.block_table[block * kv.pages_per_block + kv.page_index];
    if (page < 0) continue;  // before the window
    ToHost(context, fetched.pages.data() + block * layer_bytes, kv.base + page * kv.page_bytes + kv.layer_offset,
           static_cast<size_t>(layer_bytes));
  }
  fetched.kv = kv;
  fetched.kv.base = fetched.pages.data();
  fetched.kv.page_bytes = layer_bytes;
  fetched.kv.layer_offset = 0;
  fetched.kv.page_index = 0;
  fetched.kv.pages_per_block = 1;
  return fetched;
}

// The attention weights of each wanted row. Segments and wanted rows must be in row order.
std::vector<std::vector<float>> WantedWeights(const KernelContext& context, AttentionArgs args, int64_t num_rows,
                                              const std::vector<int32_t>& wanted_rows) {
  std::vector<float> queries;
  const KvView kv = args.kv;
  if (context.device != nullptr) {
    queries.resize(static_cast<size_t>(num_rows * args.q_stride));
    ToHost(context, queries.data(), args.q, FloatBytes(num_rows * args.q_stride));
    args.q = queries.data();
  }
  std::vector<std::vector<float>> weights;
  const AttentionSegment* segment = args.segments;
  for (int32_t row : wanted_rows) {
    while (row >= segment->row_begin + segment->num_rows) ++segment;
    AttentionSegment readable = *segment;
    FetchedSegment fetched;
    if (context.device != nullptr) {
      fetched = FetchSegment(context, kv, *segment);
      args.kv = fetched.kv;
      readable.block_table = fetched.table.data();
    }
    weights.push_back(AttentionWeights(args, readable, row - segment->row_begin));
  }
  return weights;
}

// The layers as parts of one linear op, whose outputs are next to each other.
std::vector<LinearPart> PartsOf(std::initializer_list<const LinearWeights*> layers) {
  std::vector<LinearPart> parts;
  int64_t column = 0;
  for (const LinearWeights* layer : layers) {
    const PackedView view = layer->matrix.view();
    parts.push_back({.weights = view, .bias = layer->bias.empty() ? nullptr : layer->bias.data(), .out_column = column});
    column += view.num_rows;
  }
  return parts;
}

LinearArgs ArgsOf(const std::vector<LinearPart>& parts, const float* x, const LinearInput& input, int64_t num_rows, float* out,
                  int64_t out_stride, bool accumulate) {
  return {.parts = parts.data(),
          .num_parts = static_cast<int64_t>(parts.size()),
          .num_rows = num_rows,
          .x = x,
          .x_stride = parts[0].weights.num_cols,
          .quantized = input.quantized,
          .out = out,
          .out_stride = out_stride,
          .accumulate = accumulate,
          .x_bf16 = input.rounded};
}

// The norm of whole rows [num_rows, hidden_size]; out may be x.
NormArgs HiddenNorm(const ModelConfig& config, const WeightVector& weight, const float* x, float* out, int64_t num_rows,
                    bool accumulate = false) {
  return {.x = x,
          .x_stride = config.hidden_size,
          .out = out,
          .out_stride = config.hidden_size,
          .num_rows = num_rows,
          .size = config.hidden_size,
          .weight = weight.data(),
          .eps = static_cast<float>(config.norm_eps),
          .accumulate = accumulate};
}

}  // namespace

struct Decoder::Rows {
  int64_t num_rows;
  float* x;                                // residual stream [num_rows, hidden]
  float* normed;                           // [num_rows, hidden]
  std::vector<const float*> cosine, sine;  // per RoPE
};

Decoder::Decoder(ModelConfig config, ModelWeights weights) : config_(std::move(config)), weights_(std::move(weights)) {
  for (const RopeConfig& rope : config_.ropes) ropes_.emplace_back(rope);
}

void Decoder::Reserve(const KernelContext& context, int64_t num_rows, int64_t num_logits_rows) {
  const int64_t query_size = config_.num_heads * config_.head_dim;
  const int64_t kv_size = config_.num_kv_heads * config_.head_dim;
  const int64_t mlp_rows = std::min(num_rows, kMlpRows);
  if (context.device != nullptr) ReserveFloats(context, last_hidden_, num_rows * config_.hidden_size);
  for (AlignedBuffer* buffer : {&x_, &normed_, &hidden_}) ReserveFloats(context, *buffer, num_rows * config_.hidden_size);
  ReserveFloats(context, qkv_, num_rows * (query_size + 2 * kv_size));
  ReserveFloats(context, attended_, num_rows * query_size);
  ReserveFloats(context, gate_up_, mlp_rows * 2 * config_.intermediate_size);
  ReserveFloats(context, activated_, mlp_rows * config_.intermediate_size);
  int64_t rotary = 0;
  for (const RopeTable& rope : ropes_) rotary += rope.rotary_dim();
  ReserveFloats(context, rope_values_, num_rows * rotary);
  ReserveFloats(context, logits_, num_logits_rows * config_.vocab_size);
  const int64_t most_values = num_rows * std::max(config_.hidden_size, query_size);
  const int64_t most_activated = mlp_rows * config_.intermediate_size;
  for (const auto& [room, values] : {std::pair(&forms_, most_values), std::pair(&activated_forms_, most_activated)}) {
    room->codes.Reserve(static_cast<size_t>(CodeBytes(values, context.wide_activations)), "activations", context.device);
    ReserveFloats(context, room->scales, values / 32 * 5);
  }
  if (context.device != nullptr) context.device->ReserveInputs(std::max(most_values, most_activated));
}

uint64_t Decoder::WorkspaceBytes(const ModelConfig& config, int64_t num_rows, int64_t num_logits_rows, bool wide_activations) {
  const int64_t query_size = config.num_heads * config.head_dim;
  const int64_t mlp_rows = std::min(num_rows, kMlpRows);
  int64_t rotary = 0;
  for (const RopeConfig& rope : config.ropes) rotary += rope.rotary_dim;
  // x, its norm, the last rows; query, key, value, attention's output; kMlpRows rows of the MLP; logits; converted inputs of layers.
  const int64_t floats = num_rows * (3 * config.hidden_size + 2 * query_size + 2 * config.num_kv_heads * config.head_dim + rotary) +
                         mlp_rows * 3 * config.intermediate_size + num_logits_rows * config.vocab_size;
  const int64_t values = num_rows * std::max(config.hidden_size, query_size) + mlp_rows * config.intermediate_size;
  return FloatBytes(floats + values / 32 * 5) + static_cast<uint64_t>(CodeBytes(values, wide_activations));
}

LinearInput Decoder::Input(const KernelContext& context, int64_t num_rows, std::initializer_list<const PackedMatrix*> readers, bool fine,
                           FormsRoom& room) {
  LinearInput input;
  const int64_t num_cols = (*readers.begin())->view().num_cols;
  const int64_t num_values = num_rows * num_cols;
  const auto any = [&](const auto& wanted) {
    return std::any_of(readers.begin(), readers.end(), [&](const PackedMatrix* matrix) { return wanted(matrix->view().type); });
  };
  if (any(IsQuantizedPacked)) {
    const bool wide = context.wide_activations;
    room.codes.Reserve(static_cast<size_t>(CodeBytes(num_values, wide)), "activations", context.device);
    auto* codes = room.codes.as<int8_t>();
    // 32 values have at most two scales, one sum and two half sums.
    float* scales = ReserveFloats(context, room.scales, num_values / 32 * 5);
    auto* half_sums = reinterpret_cast<int32_t*>(scales + num_values / 32 * 3);
    input.quantized = {num_cols, codes, scales, scales + num_values / 16, half_sums, fine && !wide, wide ? codes + num_values : nullptr};
  }
  if (context.bf16_dots && any([](PackedType type) { return type == PackedType::kBF16; })) {
    room.rounded.Reserve(static_cast<size_t>(num_values) * sizeof(uint16_t), "activations", nullptr);
    input.rounded = room.rounded.as<uint16_t>();
  }
  return input;
}

// Queries, keys and values of a layer, normed and rotated: rows of num_heads + 2 num_kv_heads heads.
float* Decoder::QueriesKeysValues(const KernelContext& context, int64_t layer, Rows& rows) {
  const LayerWeights& w = weights_.layers[static_cast<size_t>(layer)];
  const int64_t query_size = config_.num_heads * config_.head_dim;
  const int64_t kv_size = config_.num_kv_heads * config_.head_dim;
  const int64_t stride = query_size + 2 * kv_size;
  float* qkv = ReserveFloats(context, qkv_, rows.num_rows * stride);

  const LinearInput normed = Input(context, rows.num_rows, {&w.query.matrix, &w.key.matrix, &w.value.matrix}, true);
  Norm(context, HiddenNorm(config_, w.attention_norm, rows.x, rows.normed, rows.num_rows), normed);
  Linear(context, ArgsOf(PartsOf({&w.query, &w.key, &w.value}), rows.normed, normed, rows.num_rows, qkv, stride, false));
  float* keys = qkv + query_size;
  if (config_.qk_norm) {
    const auto norm_heads = [&](const WeightVector& weight, float* heads, int64_t num_heads) {
      Norm(context, {.x = heads,
                     .x_stride = stride,
                     .out = heads,
                     .out_stride = stride,
                     .num_rows = rows.num_rows,
                     .num_groups = num_heads,
                     .size = config_.head_dim,
                     .weight = weight.data(),
                     .eps = static_cast<float>(config_.norm_eps)});
    };
    norm_heads(w.query_norm, qkv, config_.num_heads);
    norm_heads(w.key_norm, keys, config_.num_kv_heads);
  }
  const auto rope = static_cast<size_t>(config_.layers[static_cast<size_t>(layer)].rope);
  const int64_t rotary_dim = ropes_[rope].rotary_dim();
  // Query and key heads are next to each other, so one call rotates both.
  Rope(context, {.x = qkv,
                 .x_stride = stride,
                 .num_rows = rows.num_rows,
                 .num_heads = config_.num_heads + config_.num_kv_heads,
                 .head_dim = config_.head_dim,
                 .rotary_dim = rotary_dim,
                 .cosine = rows.cosine[rope],
                 .sine = rows.sine[rope]});
  return qkv;
}

void Decoder::Attention(const KernelContext& context, KvCache& cache, const ForwardBatch& batch, int64_t layer, Rows& rows,
                        ForwardResult* result) {
  const LayerWeights& w = weights_.layers[static_cast<size_t>(layer)];
  const int64_t query_size = config_.num_heads * config_.head_dim;
  const int64_t kv_size = config_.num_kv_heads * config_.head_dim;
  const int64_t stride = query_size + 2 * kv_size;
  float* qkv = QueriesKeysValues(context, layer, rows);
  float* keys = qkv + query_size;
  float* attended = ReserveFloats(context, attended_, rows.num_rows * query_size);
  const auto group = static_cast<size_t>(cache.groups().group_of_layer(static_cast<int>(layer)));
  FindSegments(batch, group);
  const KvView kv = cache.View(static_cast<int>(layer));
  const auto num_segments = static_cast<int64_t>(segments_.size());
  const KvWriteArgs written = {
      .kv = kv, .segments = segments_.data(), .num_segments = num_segments, .k = keys, .v = keys + kv_size, .stride = stride};
  const AttentionArgs attention = {.kv = kv,
                                   .segments = segments_.data(),
                                   .num_segments = num_segments,
                                   .positions = batch.positions.data(),
                                   .q = qkv,
                                   .q_stride = stride,
                                   .num_heads = config_.num_heads,
                                   .scale = static_cast<float>(config_.attention_scale),
                                   .soft_cap = static_cast<float>(config_.attention_soft_cap),
                                   .window = config_.layers[static_cast<size_t>(layer)].window,
                                   .out = attended,
                                   .out_stride = query_size};
  WriteAndAttend(context, written, attention);
  for (size_t i = 0; i < batch.attention_layers.size(); ++i) {
    if (batch.attention_layers[i] == layer + 1) result->attention[i] = WantedWeights(context, attention, rows.num_rows, batch.wanted_rows);
  }
  const LinearInput input = Input(context, rows.num_rows, {&w.attention_output.matrix});
  ConvertInput(context, attended, rows.num_rows, query_size, input);
  if (!config_.sandwich_norms) {
    Linear(context, ArgsOf(PartsOf({&w.attention_output}), attended, input, rows.num_rows, rows.x, config_.hidden_size, true));
    return;
  }
  Linear(context, ArgsOf(PartsOf({&w.attention_output}), attended, input, rows.num_rows, rows.normed, config_.hidden_size, false));
  Norm(context, HiddenNorm(config_, w.post_attention_norm, rows.normed, rows.x, rows.num_rows, true));
}

void Decoder::Mlp(const KernelContext& context, int64_t layer, Rows& rows) {
  const LayerWeights& w = weights_.layers[static_cast<size_t>(layer)];
  const int64_t hidden = config_.hidden_size;
  const int64_t intermediate = config_.intermediate_size;
  const int64_t max_rows = std::min(rows.num_rows, kMlpRows);
  float* gate_up = ReserveFloats(context, gate_up_, max_rows * 2 * intermediate);
  float* activated = ReserveFloats(context, activated_, max_rows * intermediate);
  for (int64_t begin = 0; begin < rows.num_rows; begin += kMlpRows) {
    const int64_t num_rows = std::min(kMlpRows, rows.num_rows - begin);
    float* x = rows.x + begin * hidden;
    float* normed = rows.normed + begin * hidden;
    const LinearInput gate_input = Input(context, num_rows, {&w.gate.matrix, &w.up.matrix});
    Norm(context, HiddenNorm(config_, w.mlp_norm, x, normed, num_rows), gate_input);
    const LinearInput down_input = Input(context, num_rows, {&w.down.matrix}, false, activated_forms_);
    const std::vector<LinearPart> gate_and_up = PartsOf({&w.gate, &w.up});
    GatedLinear(
        context, ArgsOf(gate_and_up, normed, gate_input, num_rows, gate_up, 2 * intermediate, false),
        {.activation = config_.activation, .gated = true, .x = gate_up, .num_rows = num_rows, .size = intermediate, .out = activated},
        down_input);
    if (!config_.sandwich_norms) {
      Linear(context, ArgsOf(PartsOf({&w.down}), activated, down_input, num_rows, x, hidden, true));
    } else {
      Linear(context, ArgsOf(PartsOf({&w.down}), activated, down_input, num_rows, normed, hidden, false));
      Norm(context, HiddenNorm(config_, w.post_mlp_norm, normed, x, num_rows, true));
    }
  }
}

// Whether a recording can serve the step: its layers then depend only on the number of rows and on the device's memory, and nothing is
// captured from them.
bool Decoder::Replays(const KernelContext& context, const ForwardBatch& batch) {
  return context.device != nullptr && batch.num_rows() <= kMaxReplayedRows && batch.tap_layers.empty() && batch.attention_layers.empty();
}

void Decoder::FindSegments(const ForwardBatch& batch, size_t group) {
  segments_.clear();
  for (size_t s = 0; s < batch.segments.size(); ++s) segments_.push_back(batch.Segment(s, group));
}

// Uploads block tables and positions once for all layers of a KV group.
void Decoder::PlaceBatch(const KernelContext& context, KvCache& cache, const ForwardBatch& batch, int64_t num_rows) {
  const auto& groups = cache.groups().groups();
  for (size_t g = 0; g < groups.size(); ++g) {
    FindSegments(batch, g);
    context.device->PlaceBatch(cache.View(groups[g].layers[0]), groups[g].window, segments_.data(), static_cast<int64_t>(segments_.size()),
                               batch.positions.data(), num_rows);
  }
}

// Computes the cosines and sines of the positions, in the memory where the ops run.
void Decoder::ComputeRopes(const KernelContext& context, const std::vector<int32_t>& positions, Rows* rows) {
  int64_t rope_floats = 0;
  for (const RopeTable& rope : ropes_) rope_floats += rows->num_rows * rope.rotary_dim();
  float* rope_values = ReserveFloats(context, rope_values_, rope_floats);
  for (const RopeTable& rope : ropes_) {
    const int64_t half = rows->num_rows * rope.rotary_dim() / 2;
    if (context.device != nullptr) host_rope_.resize(static_cast<size_t>(2 * half));
    float* values = context.device != nullptr ? host_rope_.data() : rope_values;
    rope.Compute(context, positions.data(), rows->num_rows, values, values + half);
    if (context.device != nullptr) ToDevice(context, rope_values, values, FloatBytes(2 * half));
    rows->cosine.push_back(rope_values);
    rows->sine.push_back(rope_values + half);
    rope_values += 2 * half;
  }
}

// Copies the wanted rows of the hidden state after `layer` layers to the host, if the batch taps it.
void Decoder::Tap(const KernelContext& context, const ForwardBatch& batch, const Rows& rows, int64_t layer, ForwardResult* result) const {
  const int64_t hidden = config_.hidden_size;
  for (size_t t = 0; t < batch.tap_layers.size(); ++t) {
    if (batch.tap_layers[t] != layer) continue;
    result->taps[t].resize(batch.wanted_rows.size() * static_cast<size_t>(hidden));
    float* to = result->taps[t].data();
    for (int32_t row : batch.wanted_rows) {
      ToHost(context, to, rows.x + row * hidden, FloatBytes(hidden));
      to += hidden;
    }
  }
}

ForwardResult Decoder::Forward(const KernelContext& context, KvCache& cache, const ForwardBatch& batch) {
  ForwardResult result;
  const int64_t hidden = config_.hidden_size;
  const bool replays = Replays(context, batch);
  // Padding rows fill up a recording's number of rows: token 0 at position 0, in no segment. Nothing reads their results.
  std::vector<int32_t> token_ids = batch.token_ids;
  std::vector<int32_t> positions = batch.positions;
  if (replays) {
    token_ids.resize(static_cast<size_t>(ReplayedRows(batch.num_rows())), 0);
    positions.resize(token_ids.size(), 0);
  }
  Rows rows{static_cast<int64_t>(token_ids.size()), nullptr, nullptr, {}, {}};
  rows.x = ReserveFloats(context, x_, rows.num_rows * hidden);
  rows.normed = ReserveFloats(context, normed_, rows.num_rows * hidden);
  ComputeRopes(context, positions, &rows);
  if (context.device != nullptr) PlaceBatch(context, cache, batch, rows.num_rows);
  Embedding(context, weights_.embedding.view(), token_ids.data(), rows.num_rows, static_cast<float>(config_.embedding_scale), rows.x);
  result.taps.resize(batch.tap_layers.size());
  result.attention.resize(batch.attention_layers.size());
  const auto run_layers = [&] {
    Tap(context, batch, rows, 0, &result);
    for (int64_t layer = 0; layer < config_.num_layers; ++layer) {
      Attention(context, cache, batch, layer, rows, &result);
      Mlp(context, layer, rows);
      Tap(context, batch, rows, layer + 1, &result);
    }
  };
  if (replays) {
    context.device->Replay(this, rows.num_rows, run_layers);
  } else {
    run_layers();
  }

  const auto num_wanted = static_cast<int64_t>(batch.wanted_rows.size());
  if (num_wanted == 0) return result;
  if (context.device != nullptr) std::swap(hidden_, last_hidden_);
  float* wanted = ReserveFloats(context, hidden_, num_wanted * hidden);
  for (int64_t i = 0; i < num_wanted; ++i) {
    CopyThere(context, wanted + i * hidden, rows.x + batch.wanted_rows[static_cast<size_t>(i)] * hidden, FloatBytes(hidden));
  }
  FinalNorm(context, wanted, num_wanted);
  result.hidden = wanted;
  return result;
}

void Decoder::FinalNorm(const KernelContext& context, float* rows, int64_t num_rows) {
  Norm(context, HiddenNorm(config_, weights_.final_norm, rows, rows, num_rows));
}

void Decoder::EarlyLogits(const KernelContext& context, const float* tapped, float* logits) {
  float* row = ReserveFloats(context, hidden_, config_.hidden_size);
  ToDevice(context, row, tapped, FloatBytes(config_.hidden_size));
  FinalNorm(context, row, 1);
  LmHead(context, row, 1, logits);
}

void Decoder::LmHead(const KernelContext& context, const float* hidden, int64_t num_rows, float* logits, const Shortlist* shortlist) {
  if (context.device == nullptr) return Head(context, hidden, num_rows, logits, shortlist);
  ToHost(context, logits, LogitsThere(context, hidden, num_rows, shortlist), FloatBytes(num_rows * config_.vocab_size));
}

float* Decoder::LogitsThere(const KernelContext& context, const float* hidden, int64_t num_rows, const Shortlist* shortlist) {
  float* logits = ReserveFloats(context, logits_, num_rows * config_.vocab_size);
  Head(context, hidden, num_rows, logits, shortlist);
  return logits;
}

// hidden and out are in the memory where the ops run.
void Decoder::Head(const KernelContext& context, const float* hidden, int64_t num_rows, float* out, const Shortlist* shortlist) {
  const PackedMatrix& matrix = config_.tied_embeddings ? weights_.embedding : weights_.head;
  const LinearPart part = {.weights = matrix.view()};
  const LinearInput input = Input(context, num_rows, {&matrix}, true);
  ConvertInput(context, hidden, num_rows, config_.hidden_size, input);
  const LinearArgs args = {.parts = &part,
                           .num_parts = 1,
                           .num_rows = num_rows,
                           .x = hidden,
                           .x_stride = config_.hidden_size,
                           .quantized = input.quantized,
                           .out = out,
                           .out_stride = config_.vocab_size,
                           .x_bf16 = input.rounded};
  if (shortlist == nullptr) {
    Linear(context, args);
  } else {
    LinearTiles(context, args, shortlist->Tiles());
  }
  if (config_.final_soft_cap > 0) SoftCap(context, out, num_rows * config_.vocab_size, static_cast<float>(config_.final_soft_cap));
}

}  // namespace llmi

#include "model/decoder.h"

#include <algorithm>
#include <utility>

#include "core/errors.h"
#include "core/scalar_math.h"
#include "kernels/attention_weights.h"
#include "kernels/embedding.h"
#include "kernels/linear.h"
#include "kernels/rms_norm.h"
#include "kernels/rope.h"

namespace llmi {
namespace {

// Rows of the MLP that run at once: its intermediate values then stay in the L2 cache, and the workspace small.
constexpr int64_t kMlpRows = 256;

float* ReserveFloats(AlignedBuffer& buffer, int64_t count) {
  buffer.Reserve(static_cast<size_t>(count) * sizeof(float), "activations");
  return buffer.as<float>();
}

// Per wanted row; both are in row order.
std::vector<std::vector<float>> WantedWeights(const AttentionArgs& args, const std::vector<int32_t>& wanted_rows) {
  std::vector<std::vector<float>> weights;
  const AttentionSegment* segment = args.segments;
  for (int32_t row : wanted_rows) {
    while (row >= segment->row_begin + segment->num_rows) ++segment;
    weights.push_back(AttentionWeights(args, *segment, row - segment->row_begin));
  }
  return weights;
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

QuantizedRows Decoder::Quantized(const KernelContext& context, const float* x, int64_t num_rows, int64_t num_cols, bool needed) {
  if (!needed) return {};
  const int64_t num_values = num_rows * num_cols;
  codes_.Reserve(static_cast<size_t>(num_values), "activations");
  float* scales = ReserveFloats(scales_, num_values / 8);  // scales, sums and two half sums per 32 values
  const QuantizedRows rows = {num_cols, codes_.as<int8_t>(), scales, scales + num_values / 32,
                              reinterpret_cast<int32_t*>(scales + num_values / 16)};
  QuantizeRows(context, x, num_rows, rows);
  return rows;
}

void Decoder::Project(const KernelContext& context, std::initializer_list<const LinearWeights*> parts, const float* x, int64_t num_rows,
                      float* out, int64_t out_stride, bool accumulate) {
  std::vector<LinearPart> linear_parts;
  bool any_quantized = false;
  int64_t column = 0;
  for (const LinearWeights* part : parts) {
    const PackedView view = part->matrix.view();
    linear_parts.push_back({view, part->bias.empty() ? nullptr : part->bias.data(), column});
    column += view.num_rows;
    any_quantized = any_quantized || IsQuantizedPacked(view.type);
  }
  const int64_t num_cols = linear_parts[0].weights.num_cols;
  LinearArgs args{};
  args.parts = linear_parts.data();
  args.num_parts = static_cast<int64_t>(linear_parts.size());
  args.num_rows = num_rows;
  args.x = x;
  args.x_stride = num_cols;
  args.quantized = Quantized(context, x, num_rows, num_cols, any_quantized);
  args.out = out;
  args.out_stride = out_stride;
  args.accumulate = accumulate;
  Linear(context, args);
}

void Decoder::Attention(const KernelContext& context, KvCache& cache, const ForwardBatch& batch, int64_t layer, Rows& rows,
                        ForwardResult* result) {
  const LayerWeights& w = weights_.layers[static_cast<size_t>(layer)];
  const LayerConfig& layer_config = config_.layers[static_cast<size_t>(layer)];
  const int64_t query_size = config_.num_heads * config_.head_dim;
  const int64_t kv_size = config_.num_kv_heads * config_.head_dim;
  const int64_t stride = query_size + 2 * kv_size;
  const auto eps = static_cast<float>(config_.norm_eps);
  float* qkv = ReserveFloats(qkv_, rows.num_rows * stride);
  float* attended = ReserveFloats(attended_, rows.num_rows * query_size);

  RmsNorm(context, {rows.x, config_.hidden_size, rows.normed, config_.hidden_size, rows.num_rows, 1, config_.hidden_size,
                    w.attention_norm.data(), eps, false});
  Project(context, {&w.query, &w.key, &w.value}, rows.normed, rows.num_rows, qkv, stride, false);
  float* keys = qkv + query_size;
  if (config_.qk_norm) {
    RmsNorm(context, {qkv, stride, qkv, stride, rows.num_rows, config_.num_heads, config_.head_dim, w.query_norm.data(), eps, false});
    RmsNorm(context, {keys, stride, keys, stride, rows.num_rows, config_.num_kv_heads, config_.head_dim, w.key_norm.data(), eps, false});
  }
  const auto rope = static_cast<size_t>(layer_config.rope);
  const int64_t rotary_dim = ropes_[rope].rotary_dim();
  // Query and key heads stand side by side: one call rotates both.
  Rope(context, {qkv, stride, rows.num_rows, config_.num_heads + config_.num_kv_heads, config_.head_dim, rotary_dim, rows.cosine[rope],
                 rows.sine[rope]});

  const auto group = static_cast<size_t>(cache.groups().group_of_layer(static_cast<int>(layer)));
  segments_ = batch.segments;
  for (size_t s = 0; s < segments_.size(); ++s) segments_[s].block_table = batch.tables[group][s];
  const KvView kv = cache.View(static_cast<int>(layer));
  const auto num_segments = static_cast<int64_t>(segments_.size());
  KvWrite(context, {kv, segments_.data(), num_segments, keys, keys + kv_size, stride});
  const AttentionArgs attention = {kv,
                                   segments_.data(),
                                   num_segments,
                                   batch.positions.data(),
                                   qkv,
                                   stride,
                                   config_.num_heads,
                                   static_cast<float>(config_.attention_scale),
                                   static_cast<float>(config_.attention_soft_cap),
                                   layer_config.window,
                                   attended,
                                   query_size};
  PagedAttention(context, attention);
  for (size_t i = 0; i < batch.attention_layers.size(); ++i) {
    if (batch.attention_layers[i] == layer + 1) result->attention[i] = WantedWeights(attention, batch.wanted_rows);
  }
  if (!config_.sandwich_norms) {
    Project(context, {&w.attention_output}, attended, rows.num_rows, rows.x, config_.hidden_size, true);
    return;
  }
  Project(context, {&w.attention_output}, attended, rows.num_rows, rows.normed, config_.hidden_size, false);
  RmsNorm(context, {rows.normed, config_.hidden_size, rows.x, config_.hidden_size, rows.num_rows, 1, config_.hidden_size,
                    w.post_attention_norm.data(), eps, true});
}

void Decoder::Mlp(const KernelContext& context, int64_t layer, Rows& rows) {
  const LayerWeights& w = weights_.layers[static_cast<size_t>(layer)];
  const int64_t hidden = config_.hidden_size;
  const int64_t intermediate = config_.intermediate_size;
  const auto eps = static_cast<float>(config_.norm_eps);
  const int64_t max_rows = std::min(rows.num_rows, kMlpRows);
  float* gate_up = ReserveFloats(gate_up_, max_rows * 2 * intermediate);
  float* activated = ReserveFloats(activated_, max_rows * intermediate);
  for (int64_t begin = 0; begin < rows.num_rows; begin += kMlpRows) {
    const int64_t num_rows = std::min(kMlpRows, rows.num_rows - begin);
    float* x = rows.x + begin * hidden;
    float* normed = rows.normed + begin * hidden;
    RmsNorm(context, {x, hidden, normed, hidden, num_rows, 1, hidden, w.mlp_norm.data(), eps, false});
    Project(context, {&w.gate, &w.up}, normed, num_rows, gate_up, 2 * intermediate, false);
    GatedActivation(context, config_.activation, gate_up, num_rows, intermediate, activated);
    if (!config_.sandwich_norms) {
      Project(context, {&w.down}, activated, num_rows, x, hidden, true);
    } else {
      Project(context, {&w.down}, activated, num_rows, normed, hidden, false);
      RmsNorm(context, {normed, hidden, x, hidden, num_rows, 1, hidden, w.post_mlp_norm.data(), eps, true});
    }
  }
}

ForwardResult Decoder::Forward(const KernelContext& context, KvCache& cache, const ForwardBatch& batch) {
  ForwardResult result;
  const int64_t hidden = config_.hidden_size;
  Rows rows{batch.num_rows(), nullptr, nullptr, {}, {}};
  rows.x = ReserveFloats(x_, rows.num_rows * hidden);
  rows.normed = ReserveFloats(normed_, rows.num_rows * hidden);
  int64_t rope_floats = 0;
  for (const RopeTable& rope : ropes_) rope_floats += rows.num_rows * rope.rotary_dim();
  float* rope_values = ReserveFloats(rope_values_, rope_floats);
  for (const RopeTable& rope : ropes_) {
    float* sine = rope_values + rows.num_rows * rope.rotary_dim() / 2;
    rope.Compute(context, batch.positions.data(), rows.num_rows, rope_values, sine);
    rows.cosine.push_back(rope_values);
    rows.sine.push_back(sine);
    rope_values += rows.num_rows * rope.rotary_dim();
  }

  Embedding(context, weights_.embedding.view(), batch.token_ids.data(), rows.num_rows, static_cast<float>(config_.embedding_scale), rows.x);
  result.taps.resize(batch.tap_layers.size());
  result.attention.resize(batch.attention_layers.size());
  const auto tap = [&](int64_t layer) {
    for (size_t t = 0; t < batch.tap_layers.size(); ++t) {
      if (batch.tap_layers[t] != layer) continue;
      for (int32_t row : batch.wanted_rows) {
        result.taps[t].insert(result.taps[t].end(), rows.x + row * hidden, rows.x + (row + 1) * hidden);
      }
    }
  };
  tap(0);
  for (int64_t layer = 0; layer < config_.num_layers; ++layer) {
    Attention(context, cache, batch, layer, rows, &result);
    Mlp(context, layer, rows);
    tap(layer + 1);
  }

  const auto num_wanted = static_cast<int64_t>(batch.wanted_rows.size());
  result.hidden.resize(static_cast<size_t>(num_wanted * hidden));
  for (int64_t i = 0; i < num_wanted; ++i) {
    const float* from = rows.x + batch.wanted_rows[static_cast<size_t>(i)] * hidden;
    std::copy(from, from + hidden, result.hidden.begin() + i * hidden);
  }
  RmsNorm(context, {result.hidden.data(), hidden, result.hidden.data(), hidden, num_wanted, 1, hidden, weights_.final_norm.data(),
                    static_cast<float>(config_.norm_eps), false});
  return result;
}

void Decoder::EarlyLogits(const KernelContext& context, const float* tapped, float* logits) {
  std::vector<float> normed(static_cast<size_t>(config_.hidden_size));
  RmsNorm(context, {tapped, config_.hidden_size, normed.data(), config_.hidden_size, 1, 1, config_.hidden_size, weights_.final_norm.data(),
                    static_cast<float>(config_.norm_eps), false});
  LmHead(context, normed.data(), 1, logits);
}

void Decoder::LmHead(const KernelContext& context, const float* hidden, int64_t num_rows, float* logits) {
  const PackedMatrix& matrix = config_.tied_embeddings ? weights_.embedding : weights_.head;
  const LinearPart part = {matrix.view(), nullptr, 0};
  LinearArgs args{};
  args.parts = &part;
  args.num_parts = 1;
  args.num_rows = num_rows;
  args.x = hidden;
  args.x_stride = config_.hidden_size;
  args.quantized = Quantized(context, hidden, num_rows, config_.hidden_size, IsQuantizedPacked(part.weights.type));
  args.out = logits;
  args.out_stride = config_.vocab_size;
  args.accumulate = false;
  Linear(context, args);
  if (config_.final_soft_cap > 0) {
    const auto cap = static_cast<float>(config_.final_soft_cap);
    for (int64_t i = 0; i < num_rows * config_.vocab_size; ++i) logits[i] = SoftCapF32(logits[i], cap);
  }
}

}  // namespace llmi

#include "model/decoder.h"

#include <algorithm>
#include <utility>

#include "kernels/dispatch/transfer.h"
#include "kernels/ops/embedding.h"
#include "kernels/ops/row_ops.h"
#include "model/attention_layer.h"
#include "model/expert_layer.h"
#include "model/mlp_layer.h"

namespace llmi {
namespace {

// A device replays recorded steps of kMaxReplayedRows rows or fewer.
constexpr int64_t kMaxReplayedRows = 256;

// The number of rows of the recording that serves a step of num_rows rows. There are few such sizes, so one recording serves many steps.
int64_t ReplayedRows(int64_t num_rows) {
  if (num_rows > 8) return (num_rows + 7) / 8 * 8;
  int64_t padded = 1;
  while (padded < num_rows) padded *= 2;
  return padded;
}

// A parallel layer's MLP reads the stream as it was before attention was added to it. Stores what it reads, unless that is the norm which
// attention stores; returns where attention is to store it.
float* KeepMlpInput(const LayerPass& pass, const LayerSpec& spec, const LayerWeights& weights) {
  if (spec.order != LayerOrder::kParallel) return pass.normed;
  if (spec.mlp_reads_attention_norm && spec.attention_norm.present) return pass.kept;
  const int64_t hidden = pass.spec.hidden_size;
  if (spec.mlp_norm.present && !spec.mlp_reads_attention_norm) {
    Norm(pass.context, RowNorm(spec.mlp_norm, weights.mlp_norm, pass.x, pass.kept, pass.num_rows, hidden));
  } else {
    CopyThere(pass.context, pass.kept, pass.x, FloatBytes(pass.num_rows * hidden));
  }
  return pass.normed;
}

// Calls visit(begin, end) for each run of rows that follow each other: rows[begin, end).
template <typename Visit>
void ForEachRun(const std::vector<int32_t>& rows, const Visit& visit) {
  for (size_t begin = 0; begin < rows.size();) {
    size_t end = begin + 1;
    while (end < rows.size() && rows[end] == rows[end - 1] + 1) ++end;
    visit(begin, end);
    begin = end;
  }
}

}  // namespace

Decoder::Decoder(ModelSpec spec, ModelWeights weights)
    : spec_(std::move(spec)),
      weights_(std::move(weights)),
      work_(weights_, spec_.num_heads * spec_.head_dim),
      expert_use_(spec_),
      positions_(spec_) {}

void Decoder::Reserve(const KernelContext& context, int64_t num_rows, int64_t num_logits_rows) {
  workspace_.Reserve(context, spec_, num_rows, num_logits_rows);
  for (const int layer : always_kept_) {
    if (layer != spec_.num_layers()) Floats(context, kept_[layer], num_rows * spec_.hidden_size);
  }
}

// Whether a recording can serve the step: its layers then depend only on the number of rows and on the device's memory, and nothing is
// captured from them.
bool Decoder::Replays(const KernelContext& context, const ForwardBatch& batch) const {
  const bool keeps_more = std::ranges::any_of(batch.kept_layers, [&](int layer) { return !AlwaysKeeps(layer); });
  const bool captures = !batch.tap_layers.empty() || keeps_more || !batch.attention_layers.empty();
  return context.device != nullptr && batch.num_rows() <= kMaxReplayedRows && !captures && batch.steered.empty();
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

void Decoder::Embed(const KernelContext& context, std::span<const int32_t> token_ids, double scale, float* out) const {
  Embedding(context, weights_.embedding.view(), token_ids.data(), static_cast<int64_t>(token_ids.size()), static_cast<float>(scale), out);
}

// norm(scale * embedding of the token + embedding of the position).
void Decoder::BeginStream(const LayerPass& pass, const std::vector<int32_t>& token_ids, const std::vector<int32_t>& positions) const {
  const EmbeddingSpec& embedding = spec_.embedding;
  Embed(pass.context, token_ids, embedding.scale, pass.x);
  if (!embedding.positions.name.empty()) {
    std::vector<int32_t> rows = positions;
    for (int32_t& row : rows) row += static_cast<int32_t>(embedding.position_offset);
    Embedding(pass.context, weights_.positions.view(), rows.data(), pass.num_rows, 1.0f, pass.normed);
    AddScaled(pass.context, pass.normed, pass.num_rows * spec_.hidden_size, 1.0f, pass.x);
  }
  if (embedding.norm.present) {
    Norm(pass.context, RowNorm(embedding.norm, weights_.embedding_norm, pass.x, pass.x, pass.num_rows, spec_.hidden_size));
  }
}

void Decoder::RunLayer(const LayerPass& pass, KvCache& cache, const ForwardBatch& batch, int64_t layer, ForwardResult* result) {
  const LayerSpec& spec = spec_.layers[static_cast<size_t>(layer)];
  const LayerWeights& weights = weights_.layers[static_cast<size_t>(layer)];
  const auto group = static_cast<size_t>(cache.groups().group_of_layer(static_cast<int>(layer)));
  FindSegments(batch, group);
  float* normed_at = KeepMlpInput(pass, spec, weights);
  AttentionLayer(pass, layer, weights, normed_at,
                 {cache.View(static_cast<int>(layer)), segments_.data(), static_cast<int64_t>(segments_.size()), batch}, result);
  if (spec.has_experts()) {
    const auto index = static_cast<size_t>(layer);
    const int64_t reads = expert_use_.counts().reads[index];
    ExpertLayer(pass, layer, weights, &expert_use_);
    work_.AddExperts(layer, expert_use_.counts().reads[index] - reads, pass.num_rows * spec.moe.num_used);
  } else {
    MlpLayer(pass, spec, weights);
  }
  Steer(pass, batch, layer + 1);
  Tap(pass, batch, layer + 1, result);
  Keep(pass, batch, static_cast<int>(layer) + 1);
}

// The stream is what the last layer leaves, so that needs no copy.
bool Decoder::AlwaysKeeps(int layer) const {
  return layer == spec_.num_layers() || std::ranges::find(always_kept_, layer) != always_kept_.end();
}

const float* Decoder::rows(int layer) const {
  return layer == spec_.num_layers() ? workspace_.stream.as<float>() : kept_.at(layer).as<float>();
}

void Decoder::Keep(const LayerPass& pass, const ForwardBatch& batch, int layer) {
  const bool is_wanted = AlwaysKeeps(layer) || std::ranges::find(batch.kept_layers, layer) != batch.kept_layers.end();
  if (!is_wanted || layer == spec_.num_layers()) return;
  const int64_t count = pass.num_rows * spec_.hidden_size;
  CopyThere(pass.context, Floats(pass.context, kept_[layer], count), pass.x, FloatBytes(count));
}

// Adds the vectors that the batch has for the hidden states after `layer` layers. Other rows are not touched.
void Decoder::Steer(const LayerPass& pass, const ForwardBatch& batch, int64_t layer) const {
  const int64_t hidden = spec_.hidden_size;
  for (const SteeredRows& steered : batch.steered) {
    if (steered.layer != layer) continue;
    float* added = pass.normed + steered.row_begin * hidden;  // no layer uses it now
    ToDevice(pass.context, added, batch.steering.data() + steered.values_begin, FloatBytes(hidden));
    for (int64_t done = 1; done < steered.num_rows; done *= 2) {
      CopyThere(pass.context, added + done * hidden, added, FloatBytes(std::min(done, steered.num_rows - done) * hidden));
    }
    AddScaled(pass.context, added, steered.num_rows * hidden, 1.0f, pass.x + steered.row_begin * hidden);
  }
}

// Copies rows of the hidden state after `layer` layers to the host, if the batch taps this layer.
void Decoder::Tap(const LayerPass& pass, const ForwardBatch& batch, int64_t layer, ForwardResult* result) const {
  for (size_t t = 0; t < batch.tap_layers.size(); ++t) {
    if (batch.tap_layers[t] == layer) CopyRows(pass, batch.wanted_rows, &result->taps[t]);
  }
}

void Decoder::CopyRows(const LayerPass& pass, const std::vector<int32_t>& rows, std::vector<float>* to) const {
  const int64_t hidden = spec_.hidden_size;
  to->resize(rows.size() * static_cast<size_t>(hidden));
  ForEachRun(rows, [&](size_t begin, size_t end) {
    const auto place = static_cast<int64_t>(begin) * hidden;
    ToHost(pass.context, to->data() + place, pass.x + rows[begin] * hidden, FloatBytes(static_cast<int64_t>(end - begin) * hidden));
  });
}

// The final norm of the wanted rows of the stream. Rows in one run, as those of decoding are, are not copied first.
void Decoder::TakeWanted(const LayerPass& pass, const ForwardBatch& batch, ForwardResult* result) {
  const int64_t hidden = spec_.hidden_size;
  const auto num_wanted = static_cast<int64_t>(batch.wanted_rows.size());
  if (num_wanted == 0) return;
  if (pass.context.device != nullptr) std::swap(workspace_.hidden, workspace_.last_hidden);
  float* wanted = Floats(pass.context, workspace_.hidden, num_wanted * hidden);
  result->hidden = wanted;
  const std::vector<int32_t>& rows = batch.wanted_rows;
  if (spec_.final_norm.present && rows.back() == rows.front() + num_wanted - 1) {
    const float* stream = pass.x + rows.front() * hidden;
    Norm(pass.context, RowNorm(spec_.final_norm, weights_.final_norm, stream, wanted, num_wanted, hidden));
    return;
  }
  ForEachRun(rows, [&](size_t begin, size_t end) {
    const auto place = static_cast<int64_t>(begin) * hidden;
    CopyThere(pass.context, wanted + place, pass.x + rows[begin] * hidden, FloatBytes(static_cast<int64_t>(end - begin) * hidden));
  });
  FinalNorm(pass.context, wanted, num_wanted);
}

void Decoder::KeepRows(const KernelContext& context, const std::vector<size_t>& rows, ForwardResult* result) {
  const auto hidden = static_cast<size_t>(spec_.hidden_size);
  float* there = workspace_.hidden.as<float>();
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i] == i) continue;
    CopyThere(context, there + i * hidden, there + rows[i] * hidden, FloatBytes(spec_.hidden_size));
    for (std::vector<float>& tap : result->taps) std::copy_n(tap.data() + rows[i] * hidden, hidden, tap.data() + i * hidden);
  }
  for (std::vector<float>& tap : result->taps) tap.resize(rows.size() * hidden);
}

ForwardResult Decoder::Forward(const KernelContext& context, KvCache& cache, const ForwardBatch& batch) {
  ForwardResult result;
  const bool replays = Replays(context, batch);
  // Padding rows fill up a recording's number of rows: token 0 at position 0, in no segment. Nothing reads their results.
  std::vector<int32_t> token_ids = batch.token_ids;
  std::vector<int32_t> positions = batch.positions;
  if (replays) {
    token_ids.resize(static_cast<size_t>(ReplayedRows(batch.num_rows())), 0);
    positions.resize(token_ids.size(), 0);
  }
  float* stream = Floats(context, workspace_.stream, static_cast<int64_t>(positions.size()) * spec_.hidden_size);
  const LayerPass pass = BeginPass(context, spec_, positions, positions_, workspace_, stream);
  if (context.device != nullptr) PlaceBatch(context, cache, batch, pass.num_rows);
  BeginStream(pass, token_ids, positions);
  result.taps.resize(batch.tap_layers.size());
  result.attention.resize(batch.attention_layers.size());
  const auto run_layers = [&] {
    Steer(pass, batch, 0);
    Tap(pass, batch, 0, &result);
    Keep(pass, batch, 0);
    for (int64_t layer = 0; layer < spec_.num_layers(); ++layer) RunLayer(pass, cache, batch, layer, &result);
  };
  if (replays) {
    context.device->Replay(this, pass.num_rows, run_layers);
  } else {
    run_layers();
  }
  TakeWanted(pass, batch, &result);
  work_.AddForward(batch, cache.groups());
  return result;
}

}  // namespace llmi

#include "model/decoder.h"

#include <algorithm>
#include <utility>

#include "kernels/dispatch/transfer.h"
#include "kernels/ops/embedding.h"
#include "kernels/ops/row_ops.h"
#include "model/attention_layer.h"
#include "model/expert_layer.h"
#include "model/latent_attention.h"
#include "model/layer_input.h"
#include "model/mixer.h"
#include "model/mlp_layer.h"
#include "model/rank_calls.h"
#include "model/rank_mixers.h"

namespace llmi {
namespace {

// A device replays recorded steps of kMaxReplayedRows rows or fewer.
constexpr int64_t kMaxReplayedRows = 256;

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

// x = norm(x), where the model has this norm.
void NormStream(const LayerPass& pass, const NormSpec& norm, const NormWeights& weights) {
  if (norm.present) Norm(pass.context, RowNorm(norm, weights, pass.x, pass.x, pass.num_rows, pass.spec.hidden_size));
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

int64_t Decoder::PaddedRows(int64_t num_rows) {
  if (num_rows > 8) return (num_rows + 7) / 8 * 8;
  int64_t padded = std::min<int64_t>(num_rows, 1);
  while (padded < num_rows) padded *= 2;
  return padded;
}

Decoder::Decoder(ModelSpec spec, ModelWeights weights, std::unique_ptr<Ranks> ranks)
    : spec_(std::move(spec)),
      weights_(std::move(weights)),
      ranks_(std::move(ranks)),
      work_(weights_, spec_),
      states_(spec_),
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
  return context.device != nullptr && batch.num_rows() <= kMaxReplayedRows && !captures && batch.steered.empty() && !spec_.two_sided;
}

void Decoder::FindSegments(const ForwardBatch& batch) {
  state_segments_.clear();
  for (size_t s = 0; s < batch.states.size(); ++s) state_segments_.push_back(batch.States(s));
  segments_.resize(batch.num_groups);
  for (size_t group = 0; group < batch.num_groups; ++group) {
    segments_[group].clear();
    for (size_t s = 0; s < batch.segments.size(); ++s) segments_[group].push_back(batch.Segment(s, group));
  }
}

// Padding rows fill up a recording's number of rows: token 0 at position 0, in no segment. Nothing reads their results.
Decoder::PassIds Decoder::FindIds(const KernelContext& context, const ForwardBatch& batch) const {
  PassIds ids;
  ids.token_ids = batch.token_ids;
  ids.positions = batch.positions;
  const bool replays = Replays(context, batch);
  if (replays) {
    ids.token_ids.resize(static_cast<size_t>(PaddedRows(batch.num_rows())), 0);
    ids.positions.resize(ids.token_ids.size(), 0);
  }
  const EmbeddingSpec& embedding = spec_.embedding;
  if (!embedding.positions.name.empty()) {
    for (const int32_t position : ids.positions) ids.position_ids.push_back(position + static_cast<int32_t>(embedding.position_offset));
  }
  if (!embedding.token_types.name.empty()) {
    ids.token_types = batch.token_types;
    ids.token_types.resize(ids.token_ids.size(), 0);
  }
  // The stream's first rows need no gathering, unless they have to be copied.
  int32_t next = 0;
  if (spec_.final_norm.present && std::ranges::all_of(batch.wanted_rows, [&](int32_t row) { return row == next++; })) return ids;
  ids.wanted_rows = batch.wanted_rows;
  if (replays) ids.wanted_rows.resize(static_cast<size_t>(PaddedRows(static_cast<int64_t>(batch.wanted_rows.size()))), 0);
  return ids;
}

void Decoder::PlaceStep(const KernelContext& context, KvCache& cache, const ForwardBatch& batch, const DrawBatch* draw, PassIds* ids) {
  if (ranks_ == nullptr) {
    CheckIds(context, weights_.embedding.view(), ids->token_ids.data(), static_cast<int64_t>(ids->token_ids.size()));
  }
  if (!ids->position_ids.empty()) {
    CheckIds(context, weights_.positions.view(), ids->position_ids.data(), static_cast<int64_t>(ids->position_ids.size()));
  }
  const auto& groups = cache.groups().groups();
  std::vector<StepBatch> batches;
  for (size_t g = 0; g < groups.size(); ++g) batches.push_back({cache.View(groups[g].layers[0]), groups[g].window, segments_[g]});
  const bool replays = Replays(context, batch);
  const auto num_wanted = static_cast<int64_t>(batch.wanted_rows.size());
  ids->there = context.device->PlaceStep({.token_ids = ids->token_ids,
                                          .positions = ids->positions,
                                          .position_ids = ids->position_ids,
                                          .wanted_rows = ids->wanted_rows,
                                          .batches = batches,
                                          .states = state_segments_,
                                          .draw = draw,
                                          .num_draw_rows = replays ? PaddedRows(num_wanted) : num_wanted,
                                          .may_replay = replays});
}

void Decoder::Embed(const KernelContext& context, std::span<const int32_t> token_ids, double scale, float* out) const {
  if (ranks_ != nullptr) {
    return ranks_->Complete([&] {
      const RankCallGuard guard(ranks_.get());
      CallToEmbed(*ranks_, token_ids, static_cast<float>(scale));
      EmbedOnRank(context, token_ids, static_cast<float>(scale), out);
      ranks_->Finish();
    });
  }
  Embedding(context, weights_.embedding.view(), token_ids.data(), static_cast<int64_t>(token_ids.size()), static_cast<float>(scale), out);
}

// norm(scale * embedding of the token + embedding of the position + embedding of the token's type). Of several ranks the first is there:
// which rank has a row is not the same from step to step, so no recording has it.
void Decoder::BeginStream(const LayerPass& pass, const PassIds& ids) const {
  const EmbeddingSpec& embedding = spec_.embedding;
  const auto embed = [&](const PackedMatrix& table, const std::vector<int32_t>& rows, const int32_t* there, double scale, float* out) {
    const auto factor = static_cast<float>(scale);
    if (Device* device = pass.context.device) return device->Embedding(table.view(), there, pass.num_rows, factor, out);
    Embedding(pass.context, table.view(), rows.data(), pass.num_rows, factor, out);
  };
  if (pass.context.device != nullptr) positions_.Read(pass.context, ids.there.positions);
  if (ranks_ == nullptr) {
    embed(weights_.embedding, ids.token_ids, ids.there.token_ids, embedding.scale, pass.x);
  }
  if (!ids.position_ids.empty()) {
    embed(weights_.positions, ids.position_ids, ids.there.position_ids, 1.0, pass.normed);
    AddScaled(pass.context, pass.normed, pass.num_rows * spec_.hidden_size, 1.0f, pass.x);
  }
  if (!ids.token_types.empty()) {
    const int32_t* there = pass.context.device == nullptr ? nullptr : pass.context.device->PlaceIds(ids.token_types.data(), pass.num_rows);
    embed(weights_.token_types, ids.token_types, there, 1.0, pass.normed);
    AddScaled(pass.context, pass.normed, pass.num_rows * spec_.hidden_size, 1.0f, pass.x);
  }
  if (embedding.norm.present) {
    Norm(pass.context, RowNorm(embedding.norm, weights_.embedding_norm, pass.x, pass.x, pass.num_rows, spec_.hidden_size));
  }
  if (spec_.layer_embedding.size == 0) return;
  embed(weights_.layer_embedding, ids.token_ids, ids.there.token_ids, spec_.layer_embedding.scale, pass.layer_rows);
  ProjectLayerRows(pass, weights_);
}

void Decoder::RunLayer(const LayerPass& pass, KvCache& cache, const ForwardBatch& batch, int64_t layer, ForwardResult* result) {
  const LayerSpec& spec = spec_.layers[static_cast<size_t>(layer)];
  const LayerWeights& weights = weights_.layers[static_cast<size_t>(layer)];
  float* normed_at = KeepMlpInput(pass, spec, weights);
  if (spec.has_attention()) {
    const auto group = static_cast<size_t>(cache.groups().group_of_layer(static_cast<int>(layer)));
    const auto attend = spec.attention.has_latent() ? LatentAttentionLayer : AttentionLayer;
    attend(pass, layer, weights, normed_at,
           {cache.View(static_cast<int>(layer)), segments_[group].data(), static_cast<int64_t>(segments_[group].size()), batch,
            spec_.two_sided ? &seen_.at(spec.attention.window) : nullptr,
            batch.picks() ? cache.BoundsView(static_cast<int>(layer)) : KeyBoundsView{}},
           result);
  } else {
    MixerLayer(pass, layer, weights, normed_at, {cache.states(), states_, state_segments_, &result->state_faults});
  }
  NormStream(pass, spec.attention_sum_norm, weights.attention_sum_norm);
  if (spec.has_experts()) {
    ExpertLayer(pass, layer, weights, &expert_use_);
  } else {
    MlpLayer(pass, spec, weights);
  }
  NormStream(pass, spec.mlp_sum_norm, weights.mlp_sum_norm);
  if (spec.input.present) AddLayerInput(pass, spec.input, weights);
  if (!spec.output_scale.name.empty()) Scale(pass.context, pass.x, pass.num_rows * spec_.hidden_size, weights.output_scale);
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

// The final norm of the wanted rows of the stream.
void Decoder::TakeWanted(const LayerPass& pass, const PassIds& ids, int64_t num_wanted) const {
  if (num_wanted == 0) return;
  const float* rows = pass.x;
  if (!ids.wanted_rows.empty()) {
    const int32_t* wanted = pass.context.device != nullptr ? ids.there.wanted_rows : ids.wanted_rows.data();
    GatherRows(pass.context, pass.x, spec_.hidden_size, wanted, num_wanted, hidden_);
    rows = hidden_;
  }
  if (!spec_.final_norm.present) return;
  Norm(pass.context, RowNorm(spec_.final_norm, weights_.final_norm, rows, hidden_, num_wanted, spec_.hidden_size));
}

void Decoder::KeepRows(const KernelContext& context, const std::vector<size_t>& rows, ForwardResult* result) {
  const auto hidden = static_cast<size_t>(spec_.hidden_size);
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i] == i) continue;
    CopyThere(context, hidden_ + i * hidden, hidden_ + rows[i] * hidden, FloatBytes(spec_.hidden_size));
    for (std::vector<float>& tap : result->taps) std::copy_n(tap.data() + rows[i] * hidden, hidden, tap.data() + i * hidden);
  }
  for (std::vector<float>& tap : result->taps) tap.resize(rows.size() * hidden);
}

// Which experts a device read is not known here: it counts as many as may be.
void Decoder::CountExperts(const KernelContext& context, int64_t num_rows) {
  for (int64_t layer = 0; layer < spec_.num_layers(); ++layer) {
    const MoeSpec& moe = spec_.layers[static_cast<size_t>(layer)].moe;
    const int64_t num_pairs = num_rows * moe.num_used;
    const int64_t num_read = context.device != nullptr ? std::min(num_pairs, moe.num_experts) : expert_use_.TakeReads(layer);
    work_.AddExperts(layer, num_read, num_pairs);
  }
}

ForwardResult Decoder::Forward(const KernelContext& context, KvCache& cache, const ForwardBatch& batch, const DrawBatch* draw) {
  if (ranks_ != nullptr) {
    if (num_stages() > 1) return ForwardThroughStages(context, cache, batch);
    ranks_->CheckPages();
    CallToForward(*ranks_, batch, spec_, cache, draw != nullptr);
  }
  return Run(context, cache, batch, draw, draw != nullptr);
}

// The logits of the wanted rows, as a part of the step.
void Decoder::RunHead(const KernelContext& context, int64_t num_wanted) {
  float* logits = Floats(context, workspace_.logits, num_wanted * spec_.vocab_size);
  if (ranks_ == nullptr) {
    Head(context, hidden_, num_wanted, logits, nullptr);
  } else {
    OwnHead(context, hidden_, num_wanted, logits);
    if (ranks_->leads()) FinishLogits(context, logits, num_wanted * spec_.vocab_size);
  }
}

ForwardResult Decoder::Run(const KernelContext& context, KvCache& cache, const ForwardBatch& batch, const DrawBatch* draw, bool with_head) {
  ForwardResult result;
  const RankCallGuard guard(ranks_.get());
  FindSegments(batch);
  if (batch.picks()) cache.ForgetBounds(segments_);
  seen_.clear();
  for (const LayerSpec& layer : spec_.layers) {
    if (spec_.two_sided && !seen_.contains(layer.attention.window)) {
      seen_[layer.attention.window] = SeenRows(batch, layer.attention.window);
    }
  }
  PassIds ids = FindIds(context, batch);
  const bool replays = Replays(context, batch);
  float* stream = Floats(context, workspace_.stream, static_cast<int64_t>(ids.positions.size()) * spec_.hidden_size);
  LayerPass pass = BeginPass(context, spec_, ids.positions, positions_, workspace_, stream);
  pass.ranks = ranks_.get();
  if (context.device != nullptr) PlaceStep(context, cache, batch, draw, &ids);
  CheckInternal(!spec_.has_states() || batch.states.size() == batch.segments.size(), "a batch without states of its sequences");
  result.state_faults.resize(batch.states.size(), 0);
  result.taps.resize(batch.tap_layers.size());
  result.attention.resize(batch.attention_layers.size());
  auto num_wanted = static_cast<int64_t>(batch.wanted_rows.size());
  if (with_head) CountHead(NumTiles(HeadMatrix().view().num_rows), num_wanted);
  if (replays) num_wanted = PaddedRows(num_wanted);
  hidden_ = Floats(context, workspace_.hidden, num_wanted * spec_.hidden_size);
  if (context.device != nullptr) {
    float* in_turn = Floats(context, workspace_.hidden_in_turn, num_wanted * spec_.hidden_size);
    if (context.device->turn() == 1 && ranks_ == nullptr) hidden_ = in_turn;
  }
  result.hidden = hidden_;
  const auto ops = [&] {
    BeginStream(pass, ids);
    Steer(pass, batch, 0);
    Tap(pass, batch, 0, &result);
    Keep(pass, batch, 0);
    for (int64_t layer = 0; layer < spec_.num_layers(); ++layer) RunLayer(pass, cache, batch, layer, &result);
    TakeWanted(pass, ids, num_wanted);
    if (with_head) RunHead(context, num_wanted);
    if (draw != nullptr && ranks_ == nullptr) context.device->LaunchDraw(workspace_.logits.as<float>(), spec_.vocab_size);
  };
  const void* owner = with_head ? static_cast<const void*>(&workspace_.logits) : this;
  ReplayStage stage = ReplayStage::kPlays;
  if (ranks_ != nullptr) {
    if (replays) stage = ranks_->Agree(context.device->StageOf(owner, num_wanted));
    EmbedOnRank(context, ids.token_ids, static_cast<float>(spec_.embedding.scale), pass.x);
  }
  if (replays) {
    context.device->Replay(owner, num_wanted, ops, stage);
  } else {
    ops();
  }
  if (draw != nullptr && ranks_ != nullptr) context.device->LaunchDraw(workspace_.logits.as<float>(), spec_.vocab_size);
  if (draw != nullptr) result.ticket = context.device->EndDraw();
  if (ranks_ != nullptr) {
    ranks_->Finish();
    ranks_->NoteForward();
  }
  // So that no snapshot is kept of a state that is not finite. Other steps do not wait: such a state has logits that are not finite either.
  if (context.device != nullptr && !batch.captures.empty()) context.device->FetchStateFaults(result.state_faults);
  if (ranks_ != nullptr && !batch.states.empty()) GatherFaults(*ranks_, &result.state_faults);
  work_.AddForward(batch, cache.groups());
  CountExperts(context, batch.num_rows());
  return result;
}

}  // namespace llmi

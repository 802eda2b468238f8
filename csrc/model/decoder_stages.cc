// What a decoder does as one stage of a pipeline: the layers of its plan. Rank 0 begins each step and ends it.
#include <algorithm>
#include <chrono>
#include <utility>

#include "core/errors.h"
#include "model/batch_bytes.h"
#include "model/decoder.h"
#include "model/rank_calls.h"
#include "model/rank_mixers.h"
#include "model/stage_calls.h"

namespace llmi {
namespace {

double SecondsNow() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// The layers whose hidden states come from this stage.
bool IsOf(const RankPlan& plan, int layer) {
  const RowSpan here = plan.Layers();
  return (layer > here.begin && layer <= here.end) || (layer == 0 && plan.stage() == 0);
}

}  // namespace

// Computes this stage's layers: message->rows are those of the stream before them, and then behind them. Stage 0 begins the stream.
ForwardResult Decoder::RunStage(const KernelContext& context, KvCache& cache, StageMessage* message) {
  const ForwardBatch& batch = message->batch;
  ForwardResult result;
  FindSegments(batch);
  if (batch.picks()) cache.ForgetBounds(segments_);
  const PassIds ids = FindIds(context, batch);
  const int64_t count = batch.num_rows() * spec_.hidden_size;
  float* stream = Floats(context, workspace_.stream, count);
  LayerPass pass = BeginPass(context, spec_, ids.positions, positions_, workspace_, stream);
  pass.ranks = ranks_.get();
  CheckInternal(!spec_.has_states() || batch.states.size() == batch.segments.size(), "a batch without states of its sequences");
  result.state_faults.resize(batch.states.size(), 0);
  result.taps.resize(batch.tap_layers.size());
  result.attention.resize(batch.attention_layers.size());
  if (ranks_->plan().stage() == 0) {
    EmbedOnRank(context, ids.token_ids, static_cast<float>(spec_.embedding.scale), pass.x);
    BeginStream(pass, ids);
    Steer(pass, batch, 0);
    Tap(pass, batch, 0, &result);
    Keep(pass, batch, 0);
  } else {
    std::ranges::copy(message->rows, stream);
  }
  const RowSpan layers = ranks_->plan().Layers();
  for (int64_t layer = layers.begin; layer < layers.end; ++layer) RunLayer(pass, cache, batch, layer, &result);
  message->rows.assign(stream, stream + count);
  if (!batch.states.empty()) GatherFaults(*ranks_, &result.state_faults);
  return result;
}

// Does this stage's part of the message, and notes in it what rank 0 wants of these layers.
void Decoder::PassOn(const KernelContext& context, KvCache& cache, StageMessage* message) {
  const double start = SecondsNow();
  ForwardResult result = RunStage(context, cache, message);
  const RankPlan& plan = ranks_->plan();
  const ForwardBatch& batch = message->batch;
  for (size_t t = 0; t < batch.tap_layers.size(); ++t) {
    if (IsOf(plan, batch.tap_layers[t])) message->taps[t] = std::move(result.taps[t]);
  }
  for (size_t i = 0; i < batch.attention_layers.size(); ++i) {
    if (plan.Holds(batch.attention_layers[i] - 1)) message->attention[i] = std::move(result.attention[i]);
  }
  for (const int layer : batch.kept_layers) {
    if (layer == spec_.num_layers() || !IsOf(plan, layer)) continue;
    const float* rows = kept_.at(layer).as<float>();
    message->kept[layer].assign(rows, rows + batch.num_rows() * spec_.hidden_size);
  }
  message->state_faults.resize(result.state_faults.size(), 0);
  for (size_t i = 0; i < result.state_faults.size(); ++i) message->state_faults[i] |= result.state_faults[i];
  message->busy_s.push_back(SecondsNow() - start);
}

void Decoder::LaunchForward(const KernelContext& context, KvCache& cache, const ForwardBatch& batch) {
  StageMessage message;
  message.batch = batch;
  for (const int layer : always_kept_) message.batch.kept_layers.push_back(layer);
  message.taps.resize(batch.tap_layers.size());
  message.attention.resize(batch.attention_layers.size());
  ranks_->CheckPages();
  message.events = CallToForward(*ranks_, message.batch, spec_, cache, false);
  const RankCallGuard guard(ranks_.get());
  PassOn(context, cache, &message);
  ranks_->group().link()->Send(ToBytes(message));
  ++num_launched_;
}

ForwardResult Decoder::FinishForward(const KernelContext& context, KvCache& cache) {
  if (early_.empty()) early_.push_back(ranks_->group().link()->Receive());
  const std::vector<uint8_t> bytes = std::move(early_.front());
  early_.pop_front();
  return Finish(context, cache, bytes);
}

// Steps that are under way end first; their results wait.
ForwardResult Decoder::ForwardThroughStages(const KernelContext& context, KvCache& cache, const ForwardBatch& batch) {
  const size_t num_before = num_launched_;
  try {
    LaunchForward(context, cache, batch);
    while (early_.size() < num_before) early_.push_back(ranks_->group().link()->Receive());
    return Finish(context, cache, ranks_->group().link()->Receive());
  } catch (...) {
    DropLaunched();
    throw;
  }
}

ForwardResult Decoder::Finish(const KernelContext& context, KvCache& cache, std::span<const uint8_t> bytes) {
  --num_launched_;
  StageMessage message = ReadStage(bytes, spec_, cache);
  const ForwardBatch& batch = message.batch;
  const PassIds ids = FindIds(context, batch);
  float* stream = Floats(context, workspace_.stream, batch.num_rows() * spec_.hidden_size);
  std::ranges::copy(message.rows, stream);
  const LayerPass pass = BeginPass(context, spec_, ids.positions, positions_, workspace_, stream);
  const auto num_wanted = static_cast<int64_t>(batch.wanted_rows.size());
  hidden_ = Floats(context, workspace_.hidden, num_wanted * spec_.hidden_size);
  TakeWanted(pass, ids, num_wanted);
  for (const auto& [layer, rows] : message.kept) {
    std::ranges::copy(rows, Floats(context, kept_[layer], static_cast<int64_t>(rows.size())));
  }
  ForwardResult result;
  result.hidden = hidden_;
  result.taps = std::move(message.taps);
  result.attention = std::move(message.attention);
  result.state_faults = std::move(message.state_faults);
  stages_busy_s_.resize(message.busy_s.size(), 0);
  for (size_t stage = 0; stage < message.busy_s.size(); ++stage) stages_busy_s_[stage] += message.busy_s[stage];
  ranks_->NoteForward();
  work_.AddForward(batch, cache.groups());
  CountExperts(context, batch.num_rows());
  return result;
}

void Decoder::FollowStage(const KernelContext& context, KvCache& cache) {
  const std::vector<uint8_t> bytes = ranks_->group().link()->Receive();
  StageMessage message = ReadStage(bytes, spec_, cache);
  if (ranks_->plan().num_ranks() > 1) ranks_->Call(RankCall::kForward, bytes);
  for (const PageEvent& event : message.events) cache.Repeat(event);
  PassOn(context, cache, &message);
  ranks_->group().link()->Send(ToBytes(message));
}

}  // namespace llmi

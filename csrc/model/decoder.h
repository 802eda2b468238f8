// The decoder: one forward pass for prefill, chunks, decode, verification and trees, of any model that a ModelSpec describes.
//
// A layer (attention_layer.h, mlp_layer.h) is a list of ops; the spec says which. What a family does not have costs nothing: no op runs
// for a norm, a gate, a factor of 1 or a bias that is absent.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "cache/kv_cache.h"
#include "core/token_bits.h"
#include "kernels/dispatch/device.h"
#include "kernels/ops/attention.h"
#include "kernels/ops/context.h"
#include "model/attention_layer.h"
#include "model/expert_use.h"
#include "model/forward_batch.h"
#include "model/layer_pass.h"
#include "model/mixer.h"
#include "model/position_values.h"
#include "model/ranks.h"
#include "model/shortlist.h"
#include "model/spec.h"
#include "model/tensor_slots.h"
#include "model/weights.h"
#include "model/work.h"
#include "model/workspace.h"

namespace llmi {

struct StageMessage;

class Decoder {
 public:
  // spec: valid (ModelSpec::Validate), and that of the weights. ranks: the weights are this rank's part, and Forward, the heads and Embed
  // are computed by all ranks; null: the weights are whole.
  Decoder(ModelSpec spec, ModelWeights weights, std::unique_ptr<Ranks> ranks = nullptr);

  const ModelSpec& spec() const { return spec_; }
  const ModelWeights& weights() const { return weights_; }
  const Ranks* ranks() const { return ranks_.get(); }
  Ranks* ranks() { return ranks_.get(); }
  // On a rank other than 0: waits for rank 0's next call and takes part in it.
  void Follow(const KernelContext& context, KvCache& cache);
  // On the first rank of a stage behind the first: waits for the next step, does this stage's part and passes it on.
  void FollowStage(const KernelContext& context, KvCache& cache);

  // A forward pass over several stages, in two parts, on rank 0. Steps end in the order in which they began. The result is as Forward's,
  // until the next one ends.
  int num_stages() const { return ranks_ == nullptr ? 1 : ranks_->plan().num_stages(); }
  void LaunchForward(const KernelContext& context, KvCache& cache, const ForwardBatch& batch);
  ForwardResult FinishForward(const KernelContext& context, KvCache& cache);
  // Forgets those that have not ended, of which nothing will come.
  void DropLaunched() {
    early_.clear();
    num_launched_ = 0;
  }
  // Seconds that each stage has computed layers, as of the last step that ended.
  const std::vector<double>& stages_busy_s() const { return stages_busy_s_; }

  // The number of rows of the recording that serves num_rows rows on a device. There are few such numbers, so one recording serves many
  // steps.
  static int64_t PaddedRows(int64_t num_rows);
  // Allocates all memory that a Forward of num_rows rows and the logits of num_logits_rows rows need, so that no step allocates.
  void Reserve(const KernelContext& context, int64_t num_rows, int64_t num_logits_rows);
  // On a device: the values of positions (PositionValues::Reserve).
  void ReservePositions(const KernelContext& context, int64_t num_positions) { positions_.Reserve(context, num_positions); }

  // The work of Forward and the heads so far, for any caller.
  const Work& work() const { return work_.done(); }

  // The model's tensors and where they are; they point into this object.
  std::vector<TensorSlot> Slots() { return TensorSlotsOf(&spec_, &weights_); }

  // The sizes of the states of all layers, without numbers of slots and chunks.
  const StateSizes& state_sizes() const { return states_.sizes(); }

  // Which experts the rows of all Forwards used.
  const ExpertCounts& expert_counts() const { return expert_use_.counts(); }

  // Runs all layers, writes K and V of the batch's rows into the cache, returns the wanted rows. draw: on a device, the draw of a token for
  // wanted rows (DrawRow::logits_row counts them), without laws; it is a part of the step, and of its recording.
  // Of several ranks it is none of the recording, and all compute the head. Not re-entrant: workspaces belong to the object.
  ForwardResult Forward(const KernelContext& context, KvCache& cache, const ForwardBatch& batch, const DrawBatch* draw = nullptr);

  // From now on each Forward keeps the hidden states after these layers, recorded steps included, as ForwardBatch::kept_layers does for
  // one. Call it before Reserve.
  void AlwaysKeep(const std::vector<int>& layers) { always_kept_ = layers; }
  // The hidden states [num_rows, hidden_size] of the last Forward after a layer (0: the embedding), before any norm, where the ops run: of
  // a layer that is kept, or of the last one.
  const float* rows(int layer) const;

  // Stores rows of the embedding's table, times `scale`, in out [number of tokens, hidden_size], where the ops run.
  void Embed(const KernelContext& context, std::span<const int32_t> token_ids, double scale, float* out) const;
  // Keeps these rows of the result alone, in this order (ascending): hidden states and taps; the others are lost.
  void KeepRows(const KernelContext& context, const std::vector<size_t>& rows, ForwardResult* result);
  // Computes the logits [num_rows, vocab_size] of hidden rows (Forward's `hidden`) and stores them on the host.
  // If there is a shortlist, only the logits of its tiles are defined.
  void LmHead(const KernelContext& context, const float* hidden, int64_t num_rows, float* logits, const Shortlist* shortlist = nullptr);
  // Computes the logits of the tokens that each row allows; the others are -inf. Only tiles that hold allowed tokens are read, and no tile
  // where one token is allowed: its logit is 0, or NaN if the hidden row is not finite. allowed [num_rows]: sets of at least one token.
  // On the CPU alone.
  void AllowedLogits(const KernelContext& context, const float* hidden, std::span<const TokenBits> allowed, float* logits);
  // The result of LmHead, stored on the context's device. The decoder owns the logits; they are valid until its next call.
  float* LogitsThere(const KernelContext& context, const float* hidden, int64_t num_rows, const Shortlist* shortlist = nullptr);
  // Computes the logits [num_rows, vocab_size] of tapped hidden states [num_rows, hidden_size] by the head, after the final norm if normed.
  // Forward's `hidden` stays as it is. With a shortlist, only the logits of its tiles are defined.
  void TapLogits(const KernelContext& context, const float* tapped, int64_t num_rows, bool normed, float* logits,
                 const Shortlist* shortlist = nullptr);
  // Takes the final norm of hidden states [num_rows, hidden_size] in place, where the ops run.
  void FinalNorm(const KernelContext& context, float* rows, int64_t num_rows) const;
  // Takes the final norm of tapped hidden states [num_rows, hidden_size] on the host, in place. Forward's `hidden` stays as it is.
  void NormTapped(const KernelContext& context, float* tapped, int64_t num_rows);

 private:
  // Forward on this rank. with_head: the step has the logits of the wanted rows.
  ForwardResult Run(const KernelContext& context, KvCache& cache, const ForwardBatch& batch, const DrawBatch* draw, bool with_head);
  void RunHead(const KernelContext& context, int64_t num_wanted);
  bool Replays(const KernelContext& context, const ForwardBatch& batch) const;
  bool AlwaysKeeps(int layer) const;
  void FindSegments(const ForwardBatch& batch);
  // The ids of a pass with its padding rows, where its ops read them: on the host, or on the device.
  struct PassIds {
    std::vector<int32_t> token_ids, positions, position_ids, token_types, wanted_rows;
    StepPlaces there = {};
  };
  PassIds FindIds(const KernelContext& context, const ForwardBatch& batch) const;
  void PlaceStep(const KernelContext& context, KvCache& cache, const ForwardBatch& batch, const DrawBatch* draw, PassIds* ids);
  void BeginStream(const LayerPass& pass, const PassIds& ids) const;
  ForwardResult RunStage(const KernelContext& context, KvCache& cache, StageMessage* message);
  ForwardResult ForwardThroughStages(const KernelContext& context, KvCache& cache, const ForwardBatch& batch);
  ForwardResult Finish(const KernelContext& context, KvCache& cache, std::span<const uint8_t> bytes);
  void PassOn(const KernelContext& context, KvCache& cache, StageMessage* message);
  void RunLayer(const LayerPass& pass, KvCache& cache, const ForwardBatch& batch, int64_t layer, ForwardResult* result);
  void Steer(const LayerPass& pass, const ForwardBatch& batch, int64_t layer) const;
  void Tap(const LayerPass& pass, const ForwardBatch& batch, int64_t layer, ForwardResult* result) const;
  void CopyRows(const LayerPass& pass, const std::vector<int32_t>& rows, std::vector<float>* to) const;
  void Keep(const LayerPass& pass, const ForwardBatch& batch, int layer);
  void CountExperts(const KernelContext& context, int64_t num_rows);
  void TakeWanted(const LayerPass& pass, const PassIds& ids, int64_t num_wanted) const;
  // Returns the number of tiles that it reads.
  int64_t Head(const KernelContext& context, const float* hidden, int64_t num_rows, float* out, const Shortlist* shortlist);
  // The same on one of several ranks, whole; rank 0 has the result.
  int64_t HeadOnRank(const KernelContext& context, const float* hidden, int64_t num_rows, float* out);
  int64_t UnfinishedOnRank(const KernelContext& context, const float* hidden, int64_t num_rows, float* out);
  int64_t TryHeadOnRank(const KernelContext& context, const float* hidden, int64_t num_rows, float* out);
  int64_t OwnHead(const KernelContext& context, const float* hidden, int64_t num_rows, float* out);
  // Rows of the embedding's table, gathered.
  void EmbedOnRank(const KernelContext& context, std::span<const int32_t> token_ids, float scale, float* out) const;
  void CountHead(int64_t num_tiles, int64_t num_rows);
  const PackedMatrix& HeadMatrix() const { return spec_.tied_head() ? weights_.embedding : weights_.head; }
  LinearPart HeadPart() const { return {.weights = HeadMatrix().view(), .bias = weights_.head_bias.data()}; }  // of a whole matrix
  // Scale and soft cap.
  void FinishLogits(const KernelContext& context, float* logits, int64_t count) const;
  void KeepAllowed(const KernelContext& context, TokenBits allowed, const float* hidden, float* logits) const;

  ModelSpec spec_;
  ModelWeights weights_;
  std::unique_ptr<Ranks> ranks_;
  WorkCounter work_;
  StateLayout states_;
  ExpertUse expert_use_;
  PositionValues positions_;
  Workspace workspace_;
  mutable AlignedBuffer embedded_;  // rows of the embedding's table, in the order of ranks
  std::vector<int> always_kept_;
  std::map<int, AlignedBuffer> kept_;                    // by layer [rows, hidden]
  std::vector<std::vector<AttentionSegment>> segments_;  // those of the current batch, by KV group
  std::vector<StateSegment> state_segments_;
  std::vector<double> stages_busy_s_;
  size_t num_launched_ = 0;                 // that have not ended
  std::deque<std::vector<uint8_t>> early_;  // of the oldest ones, what has come back
  std::map<int64_t, TwoSidedRows> seen_;    // what its rows see, by window; of a two-sided model
  float* hidden_ = nullptr;                 // the wanted rows of the last Forward
};

}  // namespace llmi

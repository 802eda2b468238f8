// Which rows of each matrix, which heads and which part of the vocabulary each rank of a model holds. What is small, norms and biases, each
// rank holds whole. Borders change no bit: a rank computes whole rows of a matrix, and ranks gather what they have computed
// (decisions/0017).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/spec.h"
#include "model/tensor_slots.h"

namespace llmi {

struct RowSpan {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
};

class RankPlan {
 public:
  // split: the ranks' shares, positive and of sum 1; empty: equal ones. spec: valid. Throws Error(kInvalidArgument) for other splits and
  // for more ranks than the hidden size has tiles, Error(kUnsupportedModel) naming a matrix for which there is no rule.
  // num_stages: the layers are divided, each stage's are num_ranks ranks'; this plan is that of `stage`. Throws Error(kInvalidArgument) for
  // more stages than there are layers, those that share keys counted as one.
  RankPlan(const ModelSpec& spec, int num_ranks, const std::vector<double>& split, int stage = 0, int num_stages = 1);
  RankPlan AtStage(int stage) const;

  int stage() const { return stage_; }
  int num_stages() const { return static_cast<int>(layer_borders_.size()) - 1; }
  // The layers of this stage. The embedding, the final norm and the head are stage 0's.
  RowSpan Layers() const { return {layer_borders_[static_cast<size_t>(stage_)], layer_borders_[static_cast<size_t>(stage_) + 1]}; }
  bool Holds(int64_t layer) const { return layer >= Layers().begin && layer < Layers().end; }
  int num_ranks() const { return static_cast<int>(borders_.size()) - 1; }
  // Cut between KV heads, or where there are more ranks between query heads: then several ranks hold the K and V of one head.
  RowSpan QueryHeads(const AttentionSpec& attention, int rank) const;
  RowSpan KvHeads(const AttentionSpec& attention, int rank) const;
  // Heads of a recurrence, and the groups of queries and keys that they read: cut between groups. One group is on each rank, and so are all
  // where head h reads group h % num_groups.
  RowSpan MixerHeads(const RecurrenceSpec& mixer, int rank) const;
  RowSpan MixerGroups(const RecurrenceSpec& mixer, int rank) const;
  const RecurrenceSpec& MixerOf(int64_t layer) const { return mixers_.at(static_cast<size_t>(layer)); }  // with the heads of all ranks
  RowSpan Hidden(int rank) const { return Cut(hidden_size_, 16, rank); }       // rows of what is added to the stream
  RowSpan Inner(int64_t size, int rank) const { return Cut(size, 32, rank); }  // rows of gate and up
  RowSpan Vocabulary(int rank) const { return Cut(vocab_size_, 4096, rank); }
  int VocabularyOwner(int64_t token_id) const;
  // The packed rows of the slot's matrix; of experts those of each one. Whole where each rank holds all.
  RowSpan Rows(const TensorSlot& slot, int rank) const;

 private:
  RowSpan Cut(int64_t count, int64_t unit, int rank) const;

  static size_t LayerOf(const TensorSlot& slot);
  const AttentionSpec& AttentionOf(const TensorSlot& slot) const { return attentions_.at(LayerOf(slot)); }
  bool HoldsSlot(const TensorSlot& slot) const;

  std::vector<double> borders_;  // [num_ranks + 1], from 0 to 1
  int64_t hidden_size_, vocab_size_;
  int stage_;
  std::vector<int64_t> layer_borders_;     // [num_stages + 1]
  std::vector<AttentionSpec> attentions_;  // by layer
  std::vector<RecurrenceSpec> mixers_;     // likewise
};

}  // namespace llmi

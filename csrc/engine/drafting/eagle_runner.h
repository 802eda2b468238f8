// The engine's part of drafts by an EAGLE layer (model/eagle.h): which hidden rows of the target it still has to read, and in which slots
// of the sequences' blocks its K and V are. Engine thread only.
//
// A prompt's rows are stored as the prompt is computed. The rows of tokens that a decode step committed wait in the sequence's log until
// the next draft: their K and V are stored together with its first row. Rows of a draft are written behind the sequence's tokens, into
// slots that are reserved for the step; the true rows overwrite those that are accepted, and no others count (DraftSlots).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "cache/kv_cache.h"
#include "engine/drafting/head_tree.h"
#include "engine/drafting/sample_heads.h"
#include "engine/running.h"
#include "kernels/ops/context.h"
#include "model/decoder.h"
#include "model/eagle.h"
#include "speculative/trained_head.h"

namespace llmi {

// The forwards of the layer: their time, and the rows of each that were run whole.
struct HeadWork {
  double seconds = 0;
  std::vector<int64_t> rows;
};

class EagleRunner : public TrainedHead, private HeadLogits {
 public:
  EagleRunner(const KernelContext& context, Decoder& decoder, KvCache& cache, std::unique_ptr<EagleDecoder> layer, int64_t max_num_seqs)
      : context_(context),
        decoder_(decoder),
        cache_(cache),
        layer_(std::move(layer)),
        num_planned_rows_(HiddenLog::PlannedRows(max_num_seqs)) {}

  // The layers of the target whose hidden states it reads.
  std::vector<int> TargetLayers() const { return layer_->TargetLayers(decoder_); }
  // Stores the rows of a piece whose hidden states the log does not have yet, and those before that wait in it, if they are many.
  void Store(const LaunchedStep& step, size_t piece);
  void Propose(std::span<Seat> seats, std::span<const TreeNode> tree) override;
  // Its forwards since the last call.
  HeadWork TakeWork() { return std::exchange(work_, {}); }
  // The bytes of weights that one of its forwards reads over those of a step of the model: about the share of its time.
  double Share() const;

 private:
  std::vector<HeadTree> Begin(std::span<Seat> seats, std::span<const TreeNode> tree);
  std::vector<std::span<const float>> Behind(const std::vector<HeadTree>& trees, const std::vector<TreeFront>& front) override;
  void RunRoots(const std::vector<HeadTree>& trees);
  void RunNodes(const std::vector<HeadTree>& trees, const std::vector<TreeFront>& front);
  void AddNodes(const std::vector<HeadTree>& trees, const std::vector<TreeFront>& front, EagleRows* rows) const;

  static int64_t FirstSlot(const Sample& sample);
  bool HasRows(Sample& sample);
  void AddSlots(const Sample& sample, int64_t begin, int64_t end, EagleRows* rows) const;
  // The segment of rows of the sequence behind slot `slot`, as its attention sees them.
  AttentionSegment SeenSegment(const Sample& sample, int64_t slot, int64_t num_rows, const int32_t* parents) const;
  // The hidden rows of `count` positions that the layer reads. rows_of: where those of a target's layer begin.
  void ReadRows(const std::function<const float*(int layer)>& rows_of, int64_t count, float* to);
  // The same from the log, from `position` on.
  void ReadLog(const HiddenLog& log, int64_t position, int64_t count, float* to);
  // Slots of the blocks that the drafter does not look at.
  int64_t NumSkipped(const Sample& sample) const;
  KvView View() { return cache_.View(cache_.groups().draft_layer()); }
  size_t Group() const { return static_cast<size_t>(cache_.groups().group_of_layer(cache_.groups().draft_layer())); }

  const KernelContext& context_;
  Decoder& decoder_;
  KvCache& cache_;
  const std::unique_ptr<EagleDecoder> layer_;
  const int64_t num_planned_rows_;
  AlignedBuffer inputs_;
  const float* outputs_ = nullptr;  // of the rows that were run last
  std::vector<float> logits_;
  HeadWork work_;
};

}  // namespace llmi

// The engine's part of drafts by an EAGLE layer (model/eagle.h): which hidden rows of the target it still has to read, and in which slots
// of the sequences' blocks its K and V are. Engine thread only.
//
// A prompt's rows are stored as the prompt is computed. The rows of tokens that a decode step committed are held until the next draft:
// their K and V are stored together with its first row. Rows of a draft are written behind the sequence's tokens, into slots that are
// reserved for the step; the true rows overwrite those that are accepted, and no others count (DraftSlots).
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "cache/kv_cache.h"
#include "engine/drafting/sample_heads.h"
#include "engine/running.h"
#include "kernels/ops/context.h"
#include "model/decoder.h"
#include "model/eagle.h"
#include "speculative/trained_head.h"

namespace llmi {

// A sequence that is drafted for.
struct DraftedSequence {
  Seat* seat;
  Sample* sample;
  std::vector<TreeNode> tree;
  int64_t max_depth;             // of its nodes
  std::vector<int32_t> places;   // by node of the tree, its node in the draft; -1: no token may come there
  std::vector<int32_t> parents;  // by node of the draft
  std::vector<int32_t> depths;   // likewise
};
// A row that is run: the root (-1) or a node of the tree.
struct DraftFront {
  size_t sequence;
  int32_t node;
};

// The forwards of the layer: their time, and the rows of each that were run whole.
struct HeadWork {
  double seconds = 0;
  std::vector<int64_t> rows;
};

class EagleRunner : public TrainedHead {
 public:
  EagleRunner(const KernelContext& context, Decoder& decoder, KvCache& cache) : context_(context), decoder_(decoder), cache_(cache) {}

  // Whether this request's drafts come from the layer.
  static bool Serves(const Request& request) { return request.speculation && request.speculation->drafter->traits().needs_layer; }
  // Call it when the step's new tokens are committed and before its rows are processed: samples of a request fork from what it keeps.
  void BeforeRows(const LaunchedStep& step);
  // Call it after the walks over drafts, before they end.
  void AfterRows(const LaunchedStep& step);
  void Propose(std::span<Seat> seats, std::span<const TreeNode> tree) override;
  // Its forwards since the last call.
  HeadWork TakeWork() { return std::exchange(work_, {}); }
  // The bytes of weights that one of its forwards reads over those of a step of the model: about the share of its time.
  double Share() const;

 private:
  std::vector<DraftedSequence> Begin(std::span<Seat> seats, std::span<const TreeNode> tree);
  std::vector<DraftFront> RunRoots(std::vector<DraftedSequence>& drafted);
  // Adds the children of the rows whose outputs are given, and runs those that have children.
  std::vector<DraftFront> Grow(std::vector<DraftedSequence>& drafted, const std::vector<DraftFront>& front);
  void AddChildren(DraftedSequence& drafted, int32_t node, std::span<const float> logits);
  void AddNodes(const std::vector<DraftedSequence>& drafted, const std::vector<DraftFront>& front, EagleRows* rows) const;
  // Whether some node follows `node`, and is worth its time.
  bool GoesOn(const DraftedSequence& drafted, int32_t node) const;

  static int64_t FirstSlot(const Sample& sample);
  bool HasRows(Sample& sample);
  void AddSlots(const Sample& sample, int64_t begin, int64_t end, EagleRows* rows) const;
  // The segment of rows of the sequence behind slot `slot`, as its attention sees them.
  AttentionSegment SeenSegment(const Sample& sample, int64_t slot, int64_t num_rows, const int32_t* parents) const;
  void Store(Sample& sample, int64_t begin, int64_t end, const float* chunk, int64_t chunk_begin);
  void PutHidden(Sample& sample, int64_t position, float* to) const;
  void KeepRow(Sample& sample, int64_t position, const float* row);
  // Slots of the blocks that the drafter does not look at.
  int64_t NumSkipped(const Sample& sample) const;
  KvView View() { return cache_.View(cache_.groups().draft_layer()); }
  size_t Group() const { return static_cast<size_t>(cache_.groups().group_of_layer(cache_.groups().draft_layer())); }

  const KernelContext& context_;
  Decoder& decoder_;
  KvCache& cache_;
  AlignedBuffer inputs_;
  const float* outputs_ = nullptr;  // of the rows that were run last
  std::vector<float> logits_, row_;
  std::vector<Running*> starting_;  // requests whose other samples may start in this step
  HeadWork work_;
};

}  // namespace llmi

// The engine's part of drafts by Medusa heads (model/medusa.h): it keeps the hidden row that each sequence's last token was drawn from, and
// makes a tree of the heads' likeliest tokens. Engine thread only.
//
// A row is computed for each token that is drawn, whatever the prefix cache gave, and stays with the sequence under preemption. So drafts
// are functions of the request alone.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/drafting/sample_heads.h"
#include "engine/running.h"
#include "kernels/ops/context.h"
#include "model/decoder.h"
#include "speculative/trained_head.h"

namespace llmi {

class MedusaRunner : public TrainedHead {
 public:
  MedusaRunner(const KernelContext& context, Decoder& decoder) : context_(context), decoder_(decoder) {}

  // Whether this request's drafts come from the heads.
  static bool Serves(const Request& request) { return request.speculation && request.speculation->drafter->traits().needs_last_row; }
  // Call it when the step's new tokens are committed and before its rows are processed.
  void BeforeRows(const LaunchedStep& step);
  // Call it after the walks over drafts, before they end.
  void AfterRows(const LaunchedStep& step);
  // The heads do not see what was drafted before a token, so all nodes of one depth choose among the same logits.
  void Propose(std::span<Seat> seats, std::span<const TreeNode> tree) override;

 private:
  // A sequence that is drafted for.
  struct Guessed {
    Seat* seat;
    Sample* sample;
    std::vector<TreeNode> nodes;   // those that may come
    int64_t max_depth;             // of a draft
    std::vector<int32_t> places;   // by node, its place in the draft; -1: none
    std::vector<int32_t> parents;  // by place
    std::vector<int32_t> front;    // the nodes whose children come next; -1: the root
  };
  void KeepRow(Sample& sample, int64_t row);
  std::vector<Guessed> Begin(std::span<Seat> seats, std::span<const TreeNode> tree) const;
  // Adds the nodes of the next depth, from the logits of its head.
  void Grow(Guessed& guessed, std::span<const float> logits) const;

  const KernelContext& context_;
  Decoder& decoder_;
  std::vector<float> logits_;
  std::vector<Running*> starting_;  // requests whose other samples may start in this step
};

}  // namespace llmi

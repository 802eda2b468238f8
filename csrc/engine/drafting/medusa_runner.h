// The engine's part of drafts by Medusa heads (model/medusa.h): trees of the heads' likeliest tokens behind the hidden row that each
// sequence's last token was drawn from. Engine thread only.
//
// A row is computed for each token that is drawn, whatever the prefix cache gave, and stays with the sequence under preemption. So drafts
// are functions of the request alone.
#pragma once

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "engine/drafting/head_tree.h"
#include "kernels/ops/context.h"
#include "model/decoder.h"
#include "model/medusa.h"
#include "speculative/trained_head.h"

namespace llmi {

class MedusaRunner : public TrainedHead, private HeadLogits {
 public:
  MedusaRunner(const KernelContext& context, Decoder& decoder, std::unique_ptr<MedusaHeads> heads)
      : context_(context), decoder_(decoder), heads_(std::move(heads)) {}

  // The heads do not see what was drafted before a token, so all nodes of one depth choose among the same logits.
  void Propose(std::span<Seat> seats, std::span<const TreeNode> tree) override;

 private:
  std::vector<std::span<const float>> Behind(const std::vector<HeadTree>& trees, const std::vector<TreeFront>& front) override;

  const KernelContext& context_;
  Decoder& decoder_;
  const std::unique_ptr<MedusaHeads> heads_;
  AlignedBuffer rows_;  // by tree [hidden_size], as the target's head reads them
  std::vector<float> logits_;
};

}  // namespace llmi

// Masks, bias and penalties as changes of single logits: the one list that the host's law and a device's draw both carry out.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/draws/draw.h"
#include "sampling/law.h"

namespace llmi {

// Bad words, ids that may not come before min_tokens, bias; allowed_token_ids are not among them. In the order to be carried out.
void AppendMasks(const SamplingParams& params, const TokenHistory& history, std::vector<MaskEdit>* masks);
// Each id of the history once; nothing where no penalty is set.
void AppendPenalties(const SamplingParams& params, const TokenHistory& history, int64_t vocab_size, std::vector<PenaltyEdit>* penalties);
Penalties PenaltiesOf(const SamplingParams& params);
// Whether masks depend on which token came last.
bool MaskByLastToken(const SamplingParams& params);

// Rows for Device::Draw.
class DrawList {
 public:
  // The row of one draw as DrawToken makes it: with the noise of the history's length.
  // after: of DrawRow; then the history's last token may be any, and MaskByLastToken is not.
  void Add(const SamplingParams& params, const TokenHistory& history, int64_t sample_index, int64_t logits_row, int64_t vocab_size,
           int64_t after = -1);
  // The row that was added last judges such a token next. law: that it was drawn from, which outlives the list; empty: a point mass.
  void AddDrafted(int32_t token_id, std::span<const float> law, double uniform);
  // The noise of the draw when all are rejected.
  void SetNoiseAfterRejection(const NoiseKey& key) { rows_.back().noise_after_rejection = NoiseOf(key); }
  DrawBatch batch() const;
  int64_t size() const { return static_cast<int64_t>(rows_.size()); }
  int64_t num_laws() const { return static_cast<int64_t>(laws_.size()); }

 private:
  std::vector<DrawRow> rows_;
  std::vector<MaskEdit> masks_;
  std::vector<PenaltyEdit> penalties_;
  std::vector<uint32_t> allowed_;
  std::vector<DraftedToken> drafted_;
  std::vector<const float*> laws_;
};

}  // namespace llmi

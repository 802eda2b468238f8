// Masks, bias and penalties as a list of changes of single logits. The host's law and a device's draw both apply this list.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/draws/draw.h"
#include "sampling/law.h"
#include "sampling/steps.h"

namespace llmi {

// Appends the changes for bad words, for stop ids before min_tokens, for repeated n-grams, and for bias, in the order in which they are
// applied.
// allowed_token_ids are not among them.
void AppendMasks(const SamplingParams& params, const TokenHistory& history, std::vector<MaskEdit>* masks);
// Appends each id of the history's last penalty_last_n tokens once; nothing if no penalty is set.
void AppendPenalties(const SamplingParams& params, const TokenHistory& history, int64_t vocab_size, std::vector<PenaltyEdit>* penalties);
Penalties PenaltiesOf(const SamplingParams& params);
// Whether masks, or which tokens are penalised in a window, depend on the last token of the history in ways that a device does not know.
bool EditsByLastToken(const SamplingParams& params);
// Whether masks or penalties depend on which tokens the history holds, and not only on their number.
bool EditsByTokens(const SamplingParams& params);
// Whether masks, biases or steps change a row. min_tokens counts only where a token follows.
bool HasEdits(const SamplingParams& params, bool token_follows);
// The parameters that mask or bias a row after this number of output tokens, by name.
std::vector<const char*> MaskNames(const SamplingParams& params, int64_t num_output_tokens);
// The parameters that change a row of which the next token comes, by name: masks and biases, then the steps.
std::vector<const char*> EditNames(const SamplingParams& params);

// The filter that a step of a row alone is, for host and device. Throws Error(kInternal) for penalties, adaptive_p and mirostat.
FilterStep FilterOf(const SamplingParams& params, SamplerStep step);
// Appends the filters of a draw at the history's end, in order, for a device that knows them all (DrawsOnDevice in sampling/steps.h).
void AppendFilters(const SamplingParams& params, const TokenHistory& history, std::vector<FilterStep>* filters);

// Rows for Device::Draw.
class DrawList {
 public:
  // Adds the row of one draw, with the noise of position history.token_ids.size(), as DrawToken uses it.
  // after: as in DrawRow. If it is not -1, the history's last entry is a placeholder, so EditsByLastToken(params) must be false.
  void Add(const SamplingParams& params, const TokenHistory& history, int64_t sample_index, int64_t logits_row, int64_t vocab_size,
           int64_t after = -1);
  // Adds a drafted token, which the latest row judges after its earlier ones. law: the law that the token was drawn from; it must outlive
  // the list; empty: a point mass.
  void AddDrafted(int32_t token_id, std::span<const float> law, double uniform);
  // Sets the noise of the draw that follows if all drafted tokens of the latest row are rejected.
  void SetNoiseAfterRejection(const NoiseKey& key) { rows_.back().noise_after_rejection = NoiseOf(key); }
  DrawBatch batch() const;
  int64_t size() const { return static_cast<int64_t>(rows_.size()); }
  int64_t num_laws() const { return static_cast<int64_t>(laws_.size()); }

 private:
  std::vector<DrawRow> rows_;
  std::vector<MaskEdit> masks_;
  std::vector<PenaltyEdit> penalties_;
  std::vector<uint32_t> allowed_;
  std::vector<FilterStep> filters_;
  std::vector<DraftedToken> drafted_;
  std::vector<const float*> laws_;
};

}  // namespace llmi

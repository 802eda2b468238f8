#include "sampling/edits.h"

#include <algorithm>
#include <span>
#include <utility>

#include "core/errors.h"
#include "sampling/repetition.h"

namespace llmi {
namespace {

bool EndsWith(std::span<const int32_t> tokens, std::span<const int32_t> suffix) {
  return suffix.size() <= tokens.size() && std::equal(suffix.begin(), suffix.end(), tokens.end() - static_cast<int64_t>(suffix.size()));
}

bool HasPenalties(const SamplingParams& params) {
  return params.repetition_penalty != 1.0 || params.frequency_penalty != 0.0 || params.presence_penalty != 0.0;
}

}  // namespace

void AppendMasks(const SamplingParams& params, const TokenHistory& history, std::vector<MaskEdit>* masks) {
  const auto ban = [&](int32_t id) { masks->push_back({id, 1, 0.0f}); };
  const std::span<const int32_t> output = history.token_ids.subspan(static_cast<size_t>(history.prompt_len));
  for (const std::vector<int32_t>& word : params.bad_words) {
    // The last token of a bad word is banned if the output ends with the tokens before it.
    if (EndsWith(output, std::span(word).first(word.size() - 1))) ban(word.back());
  }
  if (static_cast<int64_t>(output.size()) < params.min_tokens) {
    for (int32_t id : params.stop_token_ids) ban(id);
    for (int32_t id : params.eos_token_ids) ban(id);
  }
  if (params.no_repeat_ngram_size > 0) {
    thread_local std::vector<int32_t> repeated;
    repeated.clear();
    AppendRepeatedNgrams(params.no_repeat_ngram_size, history.token_ids, &repeated);
    for (const int32_t id : repeated) ban(id);
  }
  for (const auto& [id, bias] : params.logit_bias) masks->push_back({id, 0, bias});
}

bool EditsByLastToken(const SamplingParams& params) {
  if (params.no_repeat_ngram_size > 0 || (HasPenalties(params) && params.penalty_last_n >= 0)) return true;
  return std::any_of(params.bad_words.begin(), params.bad_words.end(), [](const auto& word) { return word.size() > 1; });
}

Penalties PenaltiesOf(const SamplingParams& params) {
  return {static_cast<float>(params.repetition_penalty), static_cast<float>(params.frequency_penalty),
          static_cast<float>(params.presence_penalty)};
}

void AppendPenalties(const SamplingParams& params, const TokenHistory& history, int64_t vocab_size, std::vector<PenaltyEdit>* penalties) {
  if (!HasPenalties(params)) return;
  // seen[id]: 0 if the history lacks the id, else one more than its count in the output. All entries are zero between calls, so a call
  // touches only the ids of its history.
  thread_local std::vector<int32_t> seen;
  if (static_cast<int64_t>(seen.size()) < vocab_size) seen.resize(static_cast<size_t>(vocab_size));
  const size_t size = history.token_ids.size();
  const size_t begin = params.penalty_last_n < 0 ? 0 : size - std::min(size, static_cast<size_t>(params.penalty_last_n));
  for (size_t i = begin; i < size; ++i) {
    int32_t& entry = seen[static_cast<size_t>(history.token_ids[i])];
    entry = std::max(entry, 1) + (static_cast<int64_t>(i) >= history.prompt_len ? 1 : 0);
  }
  for (const int32_t id : history.token_ids.subspan(begin)) {
    const int32_t entry = std::exchange(seen[static_cast<size_t>(id)], 0);
    if (entry > 0) penalties->push_back({id, entry - 1});
  }
}

FilterStep FilterOf(const SamplingParams& params, SamplerStep step) {
  switch (step) {
    case SamplerStep::kTopNSigma: return {FilterKind::kTopNSigma, params.top_n_sigma};
    case SamplerStep::kTemperature:
      if (params.dynatemp_range <= 0) return {FilterKind::kTemperature, params.temperature};
      return {FilterKind::kDynamicTemperature, params.temperature, params.dynatemp_range, params.dynatemp_exponent};
    case SamplerStep::kMinP: return {FilterKind::kMinP, params.min_p};
    case SamplerStep::kTopK: return {FilterKind::kTopK, static_cast<double>(params.top_k)};
    case SamplerStep::kTopP: return {FilterKind::kTopP, params.top_p};
    case SamplerStep::kTypicalP: return {FilterKind::kTypicalP, params.typical_p};
    case SamplerStep::kEpsilonCutoff: return {FilterKind::kEpsilonCutoff, params.epsilon_cutoff};
    case SamplerStep::kEtaCutoff: return {FilterKind::kEtaCutoff, params.eta_cutoff};
    case SamplerStep::kTopH: return {FilterKind::kTopH, params.top_h};
    case SamplerStep::kPLess: return {FilterKind::kPLess, 0.0};
    case SamplerStep::kXtc: return {FilterKind::kXtc, params.xtc_threshold};
    default: throw Error(ErrorKind::kInternal, "this step is no filter of a row alone");
  }
}

void AppendFilters(const SamplingParams& params, const TokenHistory& history, std::vector<FilterStep>* filters) {
  const SamplerSteps steps = StepsOf(params);
  for (const SamplerStep* step = steps.late(); step != steps.end(); ++step) {
    if (*step == SamplerStep::kXtc && !(XtcCoin(params, history) && params.xtc_threshold <= 0.5)) continue;
    filters->push_back(FilterOf(params, *step));
  }
}

void DrawList::Add(const SamplingParams& params, const TokenHistory& history, int64_t sample_index, int64_t logits_row, int64_t vocab_size,
                   int64_t after) {
  DrawRow row;
  row.logits_row = logits_row;
  row.mask_begin = static_cast<int64_t>(masks_.size());
  AppendMasks(params, history, &masks_);
  row.mask_end = static_cast<int64_t>(masks_.size());
  std::stable_sort(masks_.begin() + row.mask_begin, masks_.end(), [](const MaskEdit& a, const MaskEdit& b) { return a.id < b.id; });
  row.penalty_begin = static_cast<int64_t>(penalties_.size());
  TokenHistory known = history;
  if (after >= 0 && HasPenalties(params)) {
    known.token_ids = known.token_ids.first(known.token_ids.size() - 1);
    row.after = after;
  }
  AppendPenalties(params, known, vocab_size, &penalties_);
  row.penalty_end = static_cast<int64_t>(penalties_.size());
  if (!params.allowed_token_ids.empty()) {
    row.allowed = static_cast<int64_t>(allowed_.size());
    allowed_.resize(allowed_.size() + static_cast<size_t>((vocab_size + 31) / 32));
    for (const int32_t id : params.allowed_token_ids) allowed_[static_cast<size_t>(row.allowed + id / 32)] |= 1u << (id % 32);
  }
  row.penalties = PenaltiesOf(params);
  row.filter_begin = static_cast<int64_t>(filters_.size());
  if (!HasPlainFilters(params)) AppendFilters(params, {history.token_ids, history.prompt_len, sample_index}, &filters_);
  row.filter_end = static_cast<int64_t>(filters_.size());
  if (HasPlainFilters(params)) {
    row.temperature = static_cast<float>(params.temperature);
    row.min_p = params.min_p;
    row.top_k = params.top_k < vocab_size ? params.top_k : 0;
    row.top_p = params.top_p;
  }
  row.noise = NoiseOf({params.seed, static_cast<int64_t>(history.token_ids.size()), sample_index, 0, 0});
  row.drafted_begin = row.drafted_end = static_cast<int64_t>(drafted_.size());
  rows_.push_back(row);
}

void DrawList::AddDrafted(int32_t token_id, std::span<const float> law, double uniform) {
  drafted_.push_back({token_id, law.empty() ? -1 : num_laws(), uniform});
  if (!law.empty()) laws_.push_back(law.data());
  rows_.back().drafted_end = static_cast<int64_t>(drafted_.size());
}

DrawBatch DrawList::batch() const {
  const auto size = [](const auto& list) { return static_cast<int64_t>(list.size()); };
  return {.rows = rows_.data(),
          .num_rows = size(rows_),
          .masks = masks_.data(),
          .num_masks = size(masks_),
          .penalties = penalties_.data(),
          .num_penalties = size(penalties_),
          .allowed = allowed_.data(),
          .num_allowed = size(allowed_),
          .filters = filters_.data(),
          .num_filters = size(filters_),
          .drafted = drafted_.data(),
          .num_drafted = size(drafted_),
          .laws = laws_.data(),
          .num_laws = size(laws_)};
}

}  // namespace llmi

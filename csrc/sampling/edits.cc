#include "sampling/edits.h"

#include <algorithm>
#include <iterator>
#include <limits>
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

bool Never(const SamplingParams&) { return false; }
bool Always(const SamplingParams&) { return true; }

void Ban(int32_t id, std::vector<MaskEdit>* masks) { masks->push_back({id, 1, 0.0f}); }

bool HasWordsOfSeveralTokens(const SamplingParams& params) {
  return std::any_of(params.bad_words.begin(), params.bad_words.end(), [](const auto& word) { return word.size() > 1; });
}

std::span<const int32_t> OutputOf(const TokenHistory& history) {
  return history.token_ids.subspan(static_cast<size_t>(history.prompt_len));
}

// The last token of a bad word is banned if the output ends with the tokens before it.
void BanWords(const SamplingParams& params, const TokenHistory& history, std::vector<MaskEdit>* masks) {
  for (const std::vector<int32_t>& word : params.bad_words) {
    if (EndsWith(OutputOf(history), std::span(word).first(word.size() - 1))) Ban(word.back(), masks);
  }
}

void BanStops(const SamplingParams& params, const TokenHistory&, std::vector<MaskEdit>* masks) {
  for (int32_t id : params.stop_token_ids) Ban(id, masks);
  for (int32_t id : params.eos_token_ids) Ban(id, masks);
}

void BanRepeatedNgrams(const SamplingParams& params, const TokenHistory& history, std::vector<MaskEdit>* masks) {
  thread_local std::vector<int32_t> repeated;
  repeated.clear();
  AppendRepeatedNgrams(params.no_repeat_ngram_size, history.token_ids, &repeated);
  for (const int32_t id : repeated) Ban(id, masks);
}

void AppendBias(const SamplingParams& params, const TokenHistory&, std::vector<MaskEdit>* masks) {
  for (const auto& [id, bias] : params.logit_bias) masks->push_back({id, 0, bias});
}

struct MaskRule {
  const char* name;
  bool (*is_set)(const SamplingParams& params, int64_t num_output_tokens);
  bool (*reads_tokens)(const SamplingParams& params);  // of the history, not only their number
  void (*append)(const SamplingParams& params, const TokenHistory& history, std::vector<MaskEdit>* masks);  // null: not a list of edits
};

// In the order in which they are applied.
constexpr MaskRule kMaskRules[] = {
    {"allowed_token_ids", [](const SamplingParams& params, int64_t) { return !params.allowed_token_ids.empty(); }, Never, nullptr},
    {"bad_words", [](const SamplingParams& params, int64_t) { return !params.bad_words.empty(); }, HasWordsOfSeveralTokens, BanWords},
    {"min_tokens", [](const SamplingParams& params, int64_t num_tokens) { return params.min_tokens > num_tokens; }, Never, BanStops},
    {"no_repeat_ngram_size", [](const SamplingParams& params, int64_t) { return params.no_repeat_ngram_size > 0; }, Always,
     BanRepeatedNgrams},
    {"logit_bias", [](const SamplingParams& params, int64_t) { return !params.logit_bias.empty(); }, Never, AppendBias},
};

bool MasksReadTokens(const SamplingParams& params) {
  return std::any_of(std::begin(kMaskRules), std::end(kMaskRules),
                     [&](const MaskRule& rule) { return rule.is_set(params, 0) && rule.reads_tokens(params); });
}

}  // namespace

void AppendMasks(const SamplingParams& params, const TokenHistory& history, std::vector<MaskEdit>* masks) {
  const auto num_output_tokens = static_cast<int64_t>(OutputOf(history).size());
  for (const MaskRule& rule : kMaskRules) {
    if (rule.append != nullptr && rule.is_set(params, num_output_tokens)) rule.append(params, history, masks);
  }
}

bool EditsByLastToken(const SamplingParams& params) {
  return MasksReadTokens(params) || (HasPenalties(params) && params.penalty_last_n >= 0);
}

bool EditsByTokens(const SamplingParams& params) {
  return MasksReadTokens(params) || HasPenalties(params) || HasStep(params, SamplerStep::kDry);
}

bool HasEdits(const SamplingParams& params, bool token_follows) {
  const int64_t num_output_tokens = token_follows ? 0 : std::numeric_limits<int64_t>::max();
  const auto is_set = [&](const MaskRule& rule) { return rule.is_set(params, num_output_tokens); };
  return std::any_of(std::begin(kMaskRules), std::end(kMaskRules), is_set) || StepsOf(params).count > 0;
}

std::vector<const char*> MaskNames(const SamplingParams& params, int64_t num_output_tokens) {
  std::vector<const char*> names;
  for (const MaskRule& rule : kMaskRules) {
    if (rule.is_set(params, num_output_tokens)) names.push_back(rule.name);
  }
  return names;
}

std::vector<const char*> EditNames(const SamplingParams& params) {
  std::vector<const char*> names = MaskNames(params, 0);
  for (const SamplerStep step : StepsOf(params)) {
    const bool is_dynamic = step == SamplerStep::kTemperature && params.dynatemp_range > 0;
    names.push_back(is_dynamic ? "dynatemp_range" : StepName(step));
  }
  return names;
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

#include "sampling/law.h"

#include <algorithm>
#include <bit>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "core/errors.h"
#include "core/token_bits.h"
#include "kernels/dispatch/kernel_table.h"
#include "kernels/dispatch/row_tasks.h"
#include "kernels/ops/vocab.h"
#include "sampling/edits.h"
#include "sampling/filters/filters.h"
#include "sampling/filters/row.h"
#include "sampling/repetition.h"
#include "sampling/steps.h"

namespace llmi {
namespace {

void KeepBits(TokenBits allowed, float* logits, int64_t vocab_size) {
  for (size_t word = 0; word < allowed.size(); ++word) {
    const auto first = static_cast<int64_t>(word) * 32;
    const int64_t count = std::min<int64_t>(32, vocab_size - first);
    if (allowed[word] == ~0U) continue;
    if (allowed[word] == 0) {
      std::fill_n(logits + first, count, kMinusInfinity);
      continue;
    }
    for (int64_t bit = 0; bit < count; ++bit) {
      if ((allowed[word] >> bit & 1U) == 0) logits[first + bit] = kMinusInfinity;
    }
  }
}

void KeepAllowed(const std::vector<int32_t>& allowed_token_ids, float* logits, int64_t vocab_size) {
  if (!allowed_token_ids.empty()) KeepBits(BitsOf(allowed_token_ids, vocab_size), logits, vocab_size);
}

// Throws if a constraint and other rules together have left nothing.
void CheckConstraint(const SamplingParams& params, const TokenHistory& history, std::span<const float> row) {
  if (history.allowed.empty() || std::any_of(row.begin(), row.end(), [](float logit) { return logit != kMinusInfinity; })) return;
  int64_t num_allowed = 0;
  for (const uint32_t word : history.allowed) num_allowed += std::popcount(word);
  std::string rules;
  for (const char* rule : MaskNames(params, static_cast<int64_t>(history.token_ids.size()) - history.prompt_len)) {
    rules += (rules.empty() ? "" : ", ") + std::string(rule);
  }
  if (params.contrasts_layers()) rules += (rules.empty() ? "" : ", ") + std::string("the cut of dola_layers");
  throw Error(ErrorKind::kConstraint,
              "structured_outputs allows " + std::to_string(num_allowed) + " tokens at position " +
                  std::to_string(history.token_ids.size()) + ", and " + (rules.empty() ? "logits processors" : rules) +
                  " forbid all of them: relax one of the two",
              "structured_outputs");
}

// Runs the penalties in [step, end) that follow each other in the default order as one pass. Returns the step after them.
const SamplerStep* Penalise(const SamplingParams& params, const TokenHistory& history, const SamplerStep* step, const SamplerStep* end,
                            std::span<float> row) {
  if (*step == SamplerStep::kDry) {
    ApplyDry(params, history.token_ids, row.data());
    return step + 1;
  }
  const Penalties all = PenaltiesOf(params);
  Penalties penalties;
  const SamplerStep* first = step;
  for (; step < end && *step <= SamplerStep::kPresencePenalty && (step == first || step[-1] < *step); ++step) {
    if (*step == SamplerStep::kRepetitionPenalty) penalties.repetition = all.repetition;
    if (*step == SamplerStep::kFrequencyPenalty) penalties.frequency = all.frequency;
    if (*step == SamplerStep::kPresencePenalty) penalties.presence = all.presence;
  }
  thread_local std::vector<PenaltyEdit> edits;
  edits.clear();
  AppendPenalties(params, history, static_cast<int64_t>(row.size()), &edits);
  for (const PenaltyEdit& edit : edits) {
    float& logit = row[static_cast<size_t>(edit.id)];
    logit = PenalisedLogit(edit, penalties, logit);
  }
  return step;
}

void RunFilter(const KernelContext& context, const SamplingParams& params, const TokenHistory& history, SamplerStep step, Row row) {
  if (step == SamplerStep::kAdaptiveP) return AdaptLogits(context, AdaptedTarget(params, history.state), row);
  if (step == SamplerStep::kMirostat) return KeepMirostat(context, params.mirostat, MirostatBound(params, history.state), row);
  if (step == SamplerStep::kXtc && !XtcCoin(params, history)) return;
  const FilterStep filter = FilterOf(params, step);
  switch (filter.kind) {
    case FilterKind::kTopNSigma: return KeepTopNSigma(context, filter.value, row);
    case FilterKind::kTemperature: return Temper(context, filter.value, row);
    case FilterKind::kDynamicTemperature: return TemperByEntropy(context, filter.value, filter.range, filter.exponent, row);
    case FilterKind::kMinP: return KeepMinP(context, filter.value, row);
    case FilterKind::kTopK: return KeepTopK(static_cast<int64_t>(filter.value), row);
    case FilterKind::kTopP: return KeepTopP(context, filter.value, row);
    case FilterKind::kTypicalP: return KeepTypical(context, filter.value, row);
    case FilterKind::kEpsilonCutoff: return KeepAboveEpsilon(context, filter.value, row);
    case FilterKind::kEtaCutoff: return KeepAboveEta(context, filter.value, row);
    case FilterKind::kTopH: return KeepTopH(context, filter.value, row);
    case FilterKind::kPLess: return KeepPLess(context, row);
    case FilterKind::kXtc: return CutTopChoices(context, filter.value, row);
  }
}

}  // namespace

bool XtcCoin(const SamplingParams& params, const TokenHistory& history) {
  const uint32_t word = NoiseWord({params.seed, static_cast<int64_t>(history.token_ids.size()), history.sample_index, 4, 0}, 0);
  return (static_cast<double>(word) + 0.5) * 0x1p-32 <= params.xtc_probability;
}

void PenaliseLogits(const KernelContext& context, const SamplingParams& params, const TokenHistory& history, float* logits,
                    int64_t vocab_size, const LawObserver& observer) {
  if (ArgMax(context, logits, vocab_size) < 0) {
    throw Error(ErrorKind::kNonFiniteLogits,
                "the model's logits hold NaN or infinity at position " + std::to_string(history.token_ids.size()));
  }
  if (observer) observer(LawStage::kGiven, logits);
  thread_local std::vector<MaskEdit> masks;
  masks.clear();
  AppendMasks(params, history, &masks);
  KeepBits(history.allowed, logits, vocab_size);
  KeepAllowed(params.allowed_token_ids, logits, vocab_size);
  for (const MaskEdit& edit : masks) logits[edit.id] = MaskedLogit(edit, logits[edit.id]);
  if (observer) observer(LawStage::kMasked, logits);
  const SamplerSteps steps = StepsOf(params);
  const std::span row(logits, static_cast<size_t>(vocab_size));
  for (const SamplerStep* step = steps.begin(); step < steps.late();) step = Penalise(params, history, step, steps.late(), row);
  if (observer) observer(LawStage::kPenalised, logits);
}

void MaskAgain(const SamplingParams& params, const TokenHistory& history, float* logits, int64_t vocab_size) {
  KeepBits(history.allowed, logits, vocab_size);
  KeepAllowed(params.allowed_token_ids, logits, vocab_size);
  thread_local std::vector<MaskEdit> masks;
  masks.clear();
  AppendMasks(params, history, &masks);
  for (const MaskEdit& edit : masks) {
    if (edit.banned != 0 || edit.bias == kMinusInfinity) logits[edit.id] = kMinusInfinity;
  }
}

std::vector<float> ProcessLogits(const KernelContext& context, const SamplingParams& params, const TokenHistory& history,
                                 const LogitsHook& hook, float* logits, int64_t vocab_size, const LawObserver& observer) {
  PenaliseLogits(context, params, history, logits, vocab_size, observer);
  if (hook) {
    hook(logits);
    MaskAgain(params, history, logits, vocab_size);
  }
  return FilterLogits(context, params, history, logits, vocab_size, observer);
}

std::vector<float> FilterLogits(const KernelContext& context, const SamplingParams& params, const TokenHistory& history, float* logits,
                                int64_t vocab_size, const LawObserver& observer) {
  if (observer) observer(LawStage::kProcessed, logits);
  if (ArgMax(context, logits, vocab_size) < 0) {
    CheckConstraint(params, history, {logits, static_cast<size_t>(vocab_size)});
    const std::string contrast = params.contrasts_layers() ? "the cut of dola_layers, " : "";
    throw Error::NonFiniteByParameters("no token is left to draw at position " + std::to_string(history.token_ids.size()) + ": " +
                                       contrast + "masks, biases or processors made every logit -inf, or one NaN or +inf");
  }
  const SamplerSteps steps = StepsOf(params);
  const std::span row(logits, static_cast<size_t>(vocab_size));
  std::vector<float> before_adaptive;
  for (const SamplerStep* step = steps.late(); step < steps.end();) {
    if (IsPenalty(*step)) {
      step = Penalise(params, history, step, steps.end(), row);
      continue;
    }
    if (*step == SamplerStep::kAdaptiveP) before_adaptive.assign(row.begin(), row.end());
    RunFilter(context, params, history, *step, row);
    if (*step == SamplerStep::kTemperature && observer) observer(LawStage::kTempered, logits);
    ++step;
  }
  return before_adaptive;
}

RaceNoise NoiseOf(const NoiseKey& key) {
  return {key.seed, static_cast<uint32_t>(key.position), static_cast<uint32_t>(key.sample_index), key.purpose | (key.round << 8)};
}

uint32_t NoiseWord(const NoiseKey& key, int64_t token_id) { return RaceWords(NoiseOf(key), token_id / 4)[token_id % 4]; }

double LogExponential(const NoiseKey& key, int64_t token_id) { return RaceScore(NoiseWord(key, token_id), 0.0f); }

int32_t Draw(const KernelContext& context, const NoiseKey& key, const float* law, int64_t vocab_size) {
  using Runner = std::pair<double, int64_t>;  // score, id; the least pair wins
  const auto score = [&](int64_t id) { return Runner{RaceScore(NoiseWord(key, id), law[id]), id}; };
  // The likeliest token is scored first: its score lets the loop skip nearly all others.
  const int64_t likeliest = ArgMax(context, law, vocab_size);
  CheckInternal(likeliest >= 0, "draw: the law holds NaN or infinity, or keeps no token");
  Runner winner = score(likeliest);
  const RaceNoise noise = NoiseOf(key);
  const int64_t num_chunks = (vocab_size + kVocabChunk - 1) / kVocabChunk;
  std::mutex mutex;
  const Runner favourite = winner;
  ParallelRows(context, num_chunks, 4, [&](int64_t begin, int64_t end) {
    Runner best = favourite;
    std::vector<int32_t> ids(kVocabChunk);
    const int64_t last = std::min(end * kVocabChunk, vocab_size);
    // The pieces grow: where many tokens are as likely as the favourite, the first few give a score that lets the loop skip the others.
    for (int64_t first = begin * kVocabChunk, size = 64; first < last; first += size, size = std::min(8 * size, kVocabChunk)) {
      int64_t count = 0;
      context.table->race_candidates({noise, law, first, std::min(size, last - first), static_cast<float>(best.first)}, ids.data(), &count);
      for (int64_t i = 0; i < count; ++i) best = std::min(best, score(ids[static_cast<size_t>(i)]));
    }
    const std::lock_guard lock(mutex);
    winner = std::min(winner, best);
  });
  return static_cast<int32_t>(winner.second);
}

int32_t DrawToken(const KernelContext& context, const SamplingParams& params, int64_t position, int64_t sample_index,
                  std::span<const float> law) {
  const auto vocab_size = static_cast<int64_t>(law.size());
  if (params.greedy()) return static_cast<int32_t>(ArgMax(context, law.data(), vocab_size));
  return Draw(context, {params.seed, position, sample_index, 0, 0}, law.data(), vocab_size);
}

std::vector<int32_t> DrawSeveral(const NoiseKey* key, const float* law, int64_t vocab_size, int64_t count) {
  std::vector<std::pair<double, int32_t>> scores;
  for (int64_t id = 0; id < vocab_size; ++id) {
    if (!(law[id] > kMinusInfinity)) continue;
    const double score = key == nullptr ? -static_cast<double>(law[id]) : RaceScore(NoiseWord(*key, id), law[id]);
    scores.emplace_back(score, static_cast<int32_t>(id));
  }
  const auto kept = std::min(static_cast<size_t>(std::max<int64_t>(count, 0)), scores.size());
  std::partial_sort(scores.begin(), scores.begin() + static_cast<int64_t>(kept), scores.end());
  std::vector<int32_t> ids;
  for (size_t i = 0; i < kept; ++i) ids.push_back(scores[i].second);
  return ids;
}

}  // namespace llmi

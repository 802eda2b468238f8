#include "engine/trace.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/ops/vocab.h"
#include "sampling/filters/row.h"

namespace llmi {
namespace {

constexpr int64_t kNumForemost = 8;  // by raw logit, and by the outcome of the draw

// The score that contrastive search compares; -inf for a token that was no candidate.
float ContrastScore(const Sample& sample, const ContrastRecord& record, int32_t token_id) {
  const int32_t node = sample.walk.ChildWith(token_id);
  return node < 0 ? -std::numeric_limits<float>::infinity() : static_cast<float>(record.scores[static_cast<size_t>(node)]);
}

}  // namespace

LawObserver DecodeTrace::ObserveStages(int64_t vocab_size) {
  for (std::vector<float>& stage : stages_) stage.clear();
  return
      [this, vocab_size](LawStage stage, const float* logits) { stages_[static_cast<size_t>(stage)].assign(logits, logits + vocab_size); };
}

// The token's logit after a stage. A stage that did not run changed nothing.
float DecodeTrace::At(LawStage stage, int32_t token_id) const {
  const std::vector<float>& values = stages_[static_cast<size_t>(stage)];
  const std::vector<float>& processed = stages_[static_cast<size_t>(LawStage::kProcessed)];
  return (values.empty() ? processed : values)[static_cast<size_t>(token_id)];
}

// Sets forbidden_mass and mask_kl. Each set is summed from its own largest logit, so that a mass near 0 or 1 is as exact as any.
void DecodeTrace::AddMaskCost(TraceRow* row) const {
  const std::vector<float>& given = stages_[static_cast<size_t>(LawStage::kGiven)];
  const std::vector<float>& masked = stages_[static_cast<size_t>(LawStage::kMasked)];
  if (given.empty() || masked.empty()) return;
  const auto is_forbidden = [&](size_t id) { return masked[id] == kMinusInfinity; };
  double largest[2] = {kMinusInfinity, kMinusInfinity};
  for (size_t id = 0; id < given.size(); ++id) {
    double& of_set = largest[is_forbidden(id) ? 1 : 0];
    of_set = std::max(of_set, static_cast<double>(given[id]));
  }
  double sums[2] = {0, 0};
  for (size_t id = 0; id < given.size(); ++id) {
    const int set = is_forbidden(id) ? 1 : 0;
    if (given[id] > kMinusInfinity) sums[set] += std::exp(given[id] - largest[set]);
  }
  // exp(odds) is the forbidden mass over the allowed one.
  const double odds = sums[1] == 0 ? kMinusInfinity : largest[1] - largest[0] + std::log(sums[1]) - std::log(sums[0]);
  row->mask_kl = odds > 0 ? odds + std::log1p(std::exp(-odds)) : std::log1p(std::exp(odds));
  row->forbidden_mass = odds > 0 ? 1 / (1 + std::exp(-odds)) : std::exp(odds) / (1 + std::exp(odds));
}

// Records the foremost tokens of a position, by raw logit and by the outcome of the draw.
void DecodeTrace::RecordCandidates(const Sample& sample, const float* raw, std::span<const float> law, int32_t token) const {
  const auto vocab_size = static_cast<int64_t>(law.size());
  const bool greedy = sample.request().params.greedy();
  const ContrastRecord* contrast = sample.drafting.contrast();
  const NoiseKey key = sample.next_noise_key();
  std::vector<int32_t> ids = DrawSeveral(greedy ? nullptr : &key, law.data(), vocab_size, kNumForemost);
  const std::vector<int32_t> likeliest = DrawSeveral(nullptr, raw, vocab_size, kNumForemost);
  ids.insert(ids.end(), likeliest.begin(), likeliest.end());
  ids.push_back(token);
  for (int32_t node : sample.walk.draft().Children(sample.walk.node()))
    ids.push_back(sample.walk.draft().token_ids[static_cast<size_t>(node)]);
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  for (int32_t id : ids) {
    TraceCandidate candidate;
    candidate.position = key.position;
    candidate.token_id = id;
    candidate.raw = raw[id];
    candidate.masked = At(LawStage::kMasked, id);
    candidate.penalised = At(LawStage::kPenalised, id);
    candidate.processed = At(LawStage::kProcessed, id);
    candidate.tempered = At(LawStage::kTempered, id);
    candidate.drawn = contrast == nullptr ? law[static_cast<size_t>(id)] : ContrastScore(sample, *contrast, id);
    candidate.kept = candidate.drawn > -std::numeric_limits<float>::infinity() ? 1 : 0;
    candidate.noise = greedy ? std::numeric_limits<double>::quiet_NaN() : LogExponential(key, id);
    candidate.chosen = id == token ? 1 : 0;
    sample.output().candidates.push_back(candidate);
  }
}

void DecodeTrace::Record(const Sample& sample, const float* raw, std::span<const float> law, const RowVerdict& verdict) const {
  RecordCandidates(sample, raw, law, verdict.token);
  const auto vocab_size = static_cast<int64_t>(law.size());
  const SamplingParams& params = sample.request().params;
  const bool greedy = params.greedy();
  const bool point = params.has_point_law();
  const NoiseKey key = sample.next_noise_key();
  TraceRow common;
  common.step = step_;
  common.position = key.position;
  common.depth = static_cast<int32_t>(sample.walk.num_accepted()) + 1;
  const auto is_kept = [](float value) { return value > -std::numeric_limits<float>::infinity(); };
  common.num_kept = params.contrasts() ? sample.walk.draft().size() : greedy ? 1 : std::count_if(law.begin(), law.end(), is_kept);
  common.time_s = sample.emit_time_s;
  common.noise = std::numeric_limits<double>::quiet_NaN();
  AddMaskCost(&common);
  common.draft_prob = std::numeric_limits<float>::quiet_NaN();
  const float raw_total = LogSumExp(context_, raw, vocab_size);
  const float law_total = point ? 0.0f : LogSumExp(context_, law.data(), vocab_size);
  const auto add = [&](int32_t id, float draft_prob, int8_t accepted) {
    TraceRow row = common;
    row.token_id = id;
    row.raw_logprob = raw[id] - raw_total;
    row.processed_logprob =
        point ? (id == verdict.token ? 0.0f : -std::numeric_limits<float>::infinity()) : law[static_cast<size_t>(id)] - law_total;
    for (int64_t i = 0; i < vocab_size; ++i) row.rank += raw[i] > raw[id] || (raw[i] == raw[id] && i < id);
    ++row.rank;
    if (!greedy) row.noise = LogExponential(key, id);
    row.draft_prob = draft_prob;
    row.accepted = accepted;
    sample.output().trace.push_back(row);
  };
  for (int32_t node : sample.walk.draft().Children(sample.walk.node())) {
    const auto index = static_cast<size_t>(node);
    const int32_t id = sample.walk.draft().token_ids[index];
    const bool accepted = node == verdict.child;
    if (params.contrasts()) {
      add(id, common.draft_prob, accepted ? 1 : 0);
      continue;
    }
    add(id, sample.walk.draft().laws.empty() ? 1.0f : sample.walk.draft().laws[index][static_cast<size_t>(id)], accepted ? 1 : 0);
    const bool by_rule = sample.request().speculation->verification == VerificationKind::kRule;
    if (by_rule && accepted) return;  // later siblings were not judged
  }
  if (verdict.child < 0) add(verdict.token, common.draft_prob, -1);
}

}  // namespace llmi

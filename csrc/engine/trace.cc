// The decode trace: what was tried at each position, and what became of it.
#include <algorithm>
#include <limits>
#include <vector>

#include "engine/running.h"
#include "kernels/ops/vocab.h"
#include "sampling/law.h"

namespace llmi {

namespace {

constexpr int64_t kNumForemost = 8;  // by raw logit, and by the outcome of the draw

}  // namespace

LawObserver Engine::StageObserver() {
  for (std::vector<float>& stage : stages_) stage.clear();
  return [this](LawStage stage, const float* logits) { stages_[static_cast<size_t>(stage)].assign(logits, logits + law_.size()); };
}

// The foremost tokens of a position, by raw logit and by what decided, with what became of them.
void Engine::RecordCandidates(Running& running, Sample& sample, const float* raw, int32_t token) {
  const SamplingParams& params = running.request->params;
  const auto vocab_size = static_cast<int64_t>(law_.size());
  const bool greedy = params.greedy();
  const NoiseKey key = {params.seed, static_cast<int64_t>(sample.tokens.size()), sample.index, 0, 0};
  std::vector<int32_t> ids = DrawSeveral(greedy ? nullptr : &key, law_.data(), vocab_size, kNumForemost);
  const std::vector<int32_t> likeliest = DrawSeveral(nullptr, raw, vocab_size, kNumForemost);
  ids.insert(ids.end(), likeliest.begin(), likeliest.end());
  ids.push_back(token);
  for (int32_t node : sample.draft.Children(sample.walk)) ids.push_back(sample.draft.token_ids[static_cast<size_t>(node)]);
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  const auto at = [&](LawStage stage, int32_t id) {
    const std::vector<float>& values = stages_[static_cast<size_t>(stage)];
    return values.empty() ? stages_[static_cast<size_t>(LawStage::kProcessed)][static_cast<size_t>(id)] : values[static_cast<size_t>(id)];
  };
  for (int32_t id : ids) {
    TraceCandidate candidate;
    candidate.position = key.position;
    candidate.token_id = id;
    candidate.raw = raw[id];
    candidate.masked = at(LawStage::kMasked, id);
    candidate.penalised = at(LawStage::kPenalised, id);
    candidate.processed = at(LawStage::kProcessed, id);
    candidate.tempered = at(LawStage::kTempered, id);
    candidate.kept = law_[static_cast<size_t>(id)] > -std::numeric_limits<float>::infinity() ? 1 : 0;
    candidate.noise = greedy ? std::numeric_limits<double>::quiet_NaN() : LogExponential(key, id);
    candidate.chosen = id == token ? 1 : 0;
    running.output(sample).candidates.push_back(candidate);
  }
}

// law_ holds the row's processed law. Drafted tokens first, in the order in which they were judged; then the drawn one.
void Engine::RecordTrace(Running& running, Sample& sample, const float* raw, int32_t token, int32_t child) {
  RecordCandidates(running, sample, raw, token);
  const SamplingParams& params = running.request->params;
  const auto vocab_size = static_cast<int64_t>(law_.size());
  const bool greedy = params.greedy();
  const auto position = static_cast<int64_t>(sample.tokens.size());
  TraceRow common;
  common.step = stats_.num_steps;
  common.position = position;
  common.depth = static_cast<int32_t>(sample.num_accepted) + 1;
  const auto is_kept = [](float value) { return value > -std::numeric_limits<float>::infinity(); };
  common.num_kept = greedy ? 1 : std::count_if(law_.begin(), law_.end(), is_kept);
  common.time_s = sample.emit_time_s;
  common.noise = std::numeric_limits<double>::quiet_NaN();
  common.draft_prob = std::numeric_limits<float>::quiet_NaN();
  const float raw_total = LogSumExp(context_, raw, vocab_size);
  const float law_total = greedy ? 0.0f : LogSumExp(context_, law_.data(), vocab_size);
  const auto add = [&](int32_t id, float draft_prob, int8_t accepted) {
    TraceRow row = common;
    row.token_id = id;
    row.raw_logprob = raw[id] - raw_total;
    row.processed_logprob =
        greedy ? (id == token ? 0.0f : -std::numeric_limits<float>::infinity()) : law_[static_cast<size_t>(id)] - law_total;
    for (int64_t i = 0; i < vocab_size; ++i) row.rank += raw[i] > raw[id] || (raw[i] == raw[id] && i < id);
    ++row.rank;
    if (!greedy) row.noise = LogExponential({params.seed, position, sample.index, 0, 0}, id);
    row.draft_prob = draft_prob;
    row.accepted = accepted;
    running.output(sample).trace.push_back(row);
  };
  for (int32_t node : sample.draft.Children(sample.walk)) {
    const auto index = static_cast<size_t>(node);
    const int32_t id = sample.draft.token_ids[index];
    add(id, sample.draft.laws.empty() ? 1.0f : sample.draft.laws[index][static_cast<size_t>(id)], node == child ? 1 : 0);
    const bool by_rule = running.request->speculation->verification == VerificationKind::kRule;
    if (by_rule && node == child) return;  // later siblings were not judged
  }
  if (child < 0) add(token, common.draft_prob, -1);
}

}  // namespace llmi

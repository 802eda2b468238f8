#include "engine/beams/candidates.h"

#include <algorithm>
#include <tuple>

#include "kernels/dispatch/kernel_table.h"
#include "kernels/ops/vocab.h"
#include "sampling/filters/row.h"

namespace llmi {
namespace {

constexpr size_t kBlock = 64;
constexpr size_t kLanes = 16;

// The largest value of each block of 64.
void BlockMaxima(std::span<const float> values, std::vector<float>* maxima) {
  maxima->resize((values.size() + kBlock - 1) / kBlock);
  for (size_t block = 0; block < maxima->size(); ++block) {
    const float* x = values.data() + block * kBlock;
    const size_t size = std::min(kBlock, values.size() - block * kBlock);
    float largest = kMinusInfinity;
    if (size == kBlock) {
      float lanes[kLanes];
      std::copy_n(x, kLanes, lanes);
      for (size_t i = kLanes; i < kBlock; i += kLanes) {
        for (size_t lane = 0; lane < kLanes; ++lane) lanes[lane] = x[i + lane] > lanes[lane] ? x[i + lane] : lanes[lane];
      }
      for (const float lane : lanes) largest = std::max(largest, lane);
    } else {
      for (size_t i = 0; i < size; ++i) largest = std::max(largest, x[i]);
    }
    (*maxima)[block] = largest;
  }
}

double ScoreOf(const BeamRow& row, float value) { return row.sum + static_cast<double>(value - row.total); }

BeamCandidate CandidateOf(const BeamRow& row, size_t id) {
  const double score = ScoreOf(row, row.values[id]);
  return {score, score, row.rank, row.logits[id], static_cast<int32_t>(id)};
}

template <typename Before>
void KeepFirst(std::vector<BeamCandidate>* candidates, int64_t count, const Before& before) {
  const auto kept = std::min(candidates->size(), static_cast<size_t>(std::max<int64_t>(count, 0)));
  std::partial_sort(candidates->begin(), candidates->begin() + static_cast<int64_t>(kept), candidates->end(), before);
  candidates->resize(kept);
}

bool DrawnBefore(const BeamCandidate& a, const BeamCandidate& b) { return a.key != b.key ? a.key > b.key : RanksBefore(a, b); }

}  // namespace

bool RanksBefore(const BeamCandidate& a, const BeamCandidate& b) {
  if (a.score != b.score) return a.score > b.score;
  if (a.parent != b.parent) return a.parent < b.parent;
  if (a.logit != b.logit) return a.logit > b.logit;
  return a.token < b.token;
}

std::vector<BeamCandidate> BestOfRow(const BeamRow& row, int64_t count) {
  std::vector<BeamCandidate> candidates;
  if (count <= 0 || row.values.empty()) return candidates;
  thread_local std::vector<float> maxima, order;
  BlockMaxima(row.values, &maxima);
  // At least `count` values are not below the count-th largest of the maxima.
  float bound = kMinusInfinity;
  if (static_cast<size_t>(count) < maxima.size()) {
    order = maxima;
    std::nth_element(order.begin(), order.begin() + (count - 1), order.end(), std::greater<>());
    bound = order[static_cast<size_t>(count - 1)];
  }
  const double least = ScoreOf(row, bound);  // compared as scores: lesser values can round to the same score
  for (size_t block = 0; block < maxima.size(); ++block) {
    if (!(ScoreOf(row, maxima[block]) >= least)) continue;
    const size_t end = std::min(row.values.size(), (block + 1) * kBlock);
    for (size_t id = block * kBlock; id < end; ++id) {
      if (row.values[id] > kMinusInfinity && ScoreOf(row, row.values[id]) >= least) candidates.push_back(CandidateOf(row, id));
    }
  }
  KeepFirst(&candidates, count, RanksBefore);
  return candidates;
}

std::vector<BeamCandidate> DrawnOfRow(const KernelContext& context, const BeamRow& row, const NoiseKey& noise, int64_t count) {
  const auto race_score = [&](int32_t id) { return RaceScore(NoiseWord(noise, id), row.values[static_cast<size_t>(id)]); };
  const auto drawn = [&](int32_t id) {
    BeamCandidate candidate = CandidateOf(row, static_cast<size_t>(id));
    candidate.key = row.sum - static_cast<double>(row.total) - race_score(id);
    return candidate;
  };
  std::vector<BeamCandidate> candidates = BestOfRow(row, count);
  if (static_cast<int64_t>(candidates.size()) < count) {  // the row has no others
    for (BeamCandidate& candidate : candidates) candidate = drawn(candidate.token);
    KeepFirst(&candidates, count, DrawnBefore);
    return candidates;
  }
  // The likeliest tokens bound the scores of those that can be drawn: nearly all others are skipped.
  double limit = -std::numeric_limits<double>::infinity();
  for (const BeamCandidate& candidate : candidates) limit = std::max(limit, race_score(candidate.token));
  candidates.clear();
  thread_local std::vector<int32_t> ids;
  ids.resize(kVocabChunk);
  const auto vocab_size = static_cast<int64_t>(row.values.size());
  for (int64_t first = 0; first < vocab_size; first += kVocabChunk) {
    int64_t num_ids = 0;
    const int64_t size = std::min(kVocabChunk, vocab_size - first);
    context.table->race_candidates({NoiseOf(noise), row.values.data(), first, size, static_cast<float>(limit)}, ids.data(), &num_ids);
    for (int64_t i = 0; i < num_ids; ++i) candidates.push_back(drawn(ids[static_cast<size_t>(i)]));
  }
  KeepFirst(&candidates, count, DrawnBefore);
  return candidates;
}

std::vector<BeamCandidate> BestOfAll(std::vector<BeamCandidate> candidates, int64_t count, bool drawn) {
  if (drawn) KeepFirst(&candidates, count, DrawnBefore);
  KeepFirst(&candidates, count, RanksBefore);
  return candidates;
}

}  // namespace llmi

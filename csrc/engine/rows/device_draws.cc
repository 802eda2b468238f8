#include "engine/rows/device_draws.h"

#include <algorithm>
#include <utility>

#include "engine/beams/group.h"
#include "engine/drafting/walk.h"
#include "engine/sizing.h"
#include "engine/verification.h"
#include "kernels/dispatch/device.h"
#include "kernels/dispatch/transfer.h"

namespace llmi {
namespace {

// Tokens of the draft from its root to `node`.
void AppendPath(const Draft& draft, int32_t node, std::vector<int32_t>* tokens) {
  const size_t begin = tokens->size();
  for (; node != kWalkRoot; node = draft.parent(node)) tokens->push_back(draft.token_ids[static_cast<size_t>(node)]);
  std::reverse(tokens->begin() + static_cast<int64_t>(begin), tokens->end());
}

bool FindsCandidates(const LogitsRow& row) {
  return row.plan.decider == RowDecider::kBeams && row.plan.place == RowPlace::kDevice && !row.sample->finished;
}

}  // namespace

float* DeviceDraws::HostRow(int64_t row) {
  logits_.Reserve(row + 1);
  return logits_.Row(row);
}

// Rows that the host reads, those of beams, drafts with laws, which are uploads of their own, and several chunks follow the forward.
bool DeviceDraws::DrawsAll(std::span<const LogitsRow> rows) const {
  const auto num_rows = static_cast<int64_t>(rows.size());
  if (context_.device == nullptr || num_rows > LogitsRowsAtOnce(decoder_.spec().vocab_size, true)) return false;
  return std::ranges::all_of(rows, [](const LogitsRow& row) {
    const bool drawn = row.plan.place == RowPlace::kDevice && row.plan.decider != RowDecider::kBeams;
    return row.sample->finished || (drawn && row.sample->walk.draft().laws.empty());
  });
}

void DeviceDraws::LaunchForward(KvCache& cache, const ForwardBatch& batch, LaunchedStep* step) {
  DrawList draws;
  PendingDraws pending;
  if (DrawsAll(step->rows)) {
    for (size_t i = 0; i < step->rows.size(); ++i) {
      if (!step->rows[i].sample->finished) AddDraw(step->rows[i], i, &draws, &pending);
    }
  }
  const DrawBatch drawn = draws.batch();
  step->result = decoder_.Forward(context_, cache, batch, draws.size() > 0 ? &drawn : nullptr);
  if (draws.size() == 0) return;
  pending.ticket = step->result.ticket;
  step->draws = std::move(pending);
}

void DeviceDraws::AddDraw(const LogitsRow& row, size_t index, DrawList* draws, PendingDraws* pending) {
  const Sample& sample = *row.sample;
  const SamplingParams& params = sample.running->request->params;
  const auto num_accepted = static_cast<int64_t>(sample.walk.num_accepted());  // on the path, by a row of an earlier chunk
  if (EditsByTokens(params)) {
    tokens_.assign(sample.tokens.begin(), sample.tokens.end() - num_accepted);
  } else {
    tokens_.resize(sample.tokens.size() - static_cast<size_t>(num_accepted));  // only their number counts
  }
  AppendPath(sample.walk.draft(), row.node, &tokens_);
  if (row.after >= 0) tokens_.push_back(0);  // stands for the one that is not known yet
  const TokenHistory history = {tokens_, sample.running->prompt_len()};
  draws->Add(params, history, sample.index, static_cast<int64_t>(index), decoder_.spec().vocab_size, row.after);
  if (const std::vector<int32_t> children = ChildrenToJudge(row); !children.empty()) {
    const NoiseKey key = sample.noise_key(static_cast<int64_t>(tokens_.size()), sample.drafting.round());
    AddVerification(key, sample.walk.draft(), children, draws);
  }
  pending->places.push_back(index);
}

PendingDraws DeviceDraws::Launch(std::span<const LogitsRow> rows, const float* hidden) {
  const int64_t vocab_size = decoder_.spec().vocab_size;
  float* there = decoder_.LogitsThere(context_, hidden, static_cast<int64_t>(rows.size()));
  PendingDraws pending;
  DrawList draws;
  for (size_t i = 0; i < rows.size(); ++i) {
    const Sample& sample = *rows[i].sample;
    const auto row = static_cast<int64_t>(i);
    if (sample.finished || sample.walk.has_ended()) continue;  // the walk ended at a row of an earlier chunk
    if (FindsCandidates(rows[i])) continue;
    const int64_t num_laws = sample.walk.draft().laws.empty() ? 0 : static_cast<int64_t>(ChildrenToJudge(rows[i]).size());
    if (rows[i].plan.place == RowPlace::kHost || draws.num_laws() + num_laws > kMostDrawLaws) {
      ToHost(context_, HostRow(row), there + row * vocab_size, static_cast<size_t>(vocab_size) * sizeof(float));
    } else {
      AddDraw(rows[i], i, &draws, &pending);
    }
  }
  if (draws.size() > 0) pending.ticket = context_.device->Draw(draws.batch(), there, vocab_size);
  LaunchCandidates(rows, there, &pending);
  return pending;
}

// One launch for rows that follow each other and bring equally many candidates, as those of a search do.
void DeviceDraws::LaunchCandidates(std::span<const LogitsRow> rows, const float* there, PendingDraws* pending) {
  std::vector<PendingCandidates>& launches = pending->candidates;
  size_t total = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (!FindsCandidates(rows[i])) continue;
    const int64_t count = rows[i].sample->running->beams->num_of_row();
    const bool follows = !launches.empty() && launches.back().place + launches.back().num_rows == i && launches.back().count == count;
    if (!follows) launches.push_back({i, 0, count, total});
    ++launches.back().num_rows;
    total += static_cast<size_t>(count);
  }
  if (launches.empty()) return;
  found_there_.Reserve(total * sizeof(TopCandidate), "candidates of beams", context_.device);
  const int64_t vocab_size = decoder_.spec().vocab_size;
  for (const PendingCandidates& launch : launches) {
    TopCandidates(context_, {.logits = there + static_cast<int64_t>(launch.place) * vocab_size,
                             .num_rows = static_cast<int64_t>(launch.num_rows),
                             .vocab_size = vocab_size,
                             .count = launch.count,
                             .out = found_there_.as<TopCandidate>() + launch.begin});
  }
  found_.resize(total);
}

bool DeviceDraws::Take(std::span<const LogitsRow> rows, const float* hidden, const PendingDraws& draws) {
  drawn_.assign(rows.size(), kNotDrawn);
  candidates_.assign(rows.size(), {});
  const bool drew_all = draws.places.empty() || TakeDrawn(rows, hidden, draws);
  const bool found_all = draws.candidates.empty() || TakeCandidates(rows, hidden, draws);
  return drew_all && found_all;
}

void DeviceDraws::Recompute(size_t row, const float* hidden) {
  const auto index = static_cast<int64_t>(row);
  decoder_.LmHead(context_, hidden + index * decoder_.spec().hidden_size, 1, HostRow(index));
}

bool DeviceDraws::TakeDrawn(std::span<const LogitsRow> rows, const float* hidden, const PendingDraws& draws) {
  const DrawnRows drawn = context_.device->TakeDrawn(draws.ticket);
  bool drew_all = true;
  for (size_t i = 0; i < draws.places.size(); ++i) {
    const size_t place = draws.places[i];
    const Sample& sample = *rows[place].sample;
    RowVerdict& verdict = drawn_[place];
    verdict = {drawn.tokens[i], kFindChild};
    if (const std::vector<int32_t> children = ChildrenToJudge(rows[place]); !children.empty()) {
      verdict.child = drawn.accepted[i] < 0 ? kWalkRoot : children[static_cast<size_t>(drawn.accepted[i])];
    }
    if (verdict.token != kNoToken || sample.finished) continue;
    drew_all = false;
    Recompute(place, hidden);
  }
  num_draws_ += static_cast<int64_t>(draws.places.size());
  return drew_all;
}

bool DeviceDraws::TakeCandidates(std::span<const LogitsRow> rows, const float* hidden, const PendingDraws& draws) {
  ToHost(context_, found_.data(), found_there_.data(), found_.size() * sizeof(TopCandidate));
  bool found_all = true;
  for (const PendingCandidates& launch : draws.candidates) {
    const auto count = static_cast<size_t>(launch.count);
    for (size_t i = 0; i < launch.num_rows; ++i) {
      const size_t place = launch.place + i;
      const TopCandidate* first = found_.data() + launch.begin + i * count;
      const TopCandidate* end = std::find_if(first, first + count, [](const TopCandidate& found) { return found.token == kNoToken; });
      candidates_[place] = {first, end};
      if (first != end || rows[place].sample->finished) continue;
      found_all = false;
      Recompute(place, hidden);
    }
    num_draws_ += static_cast<int64_t>(launch.num_rows);
  }
  return found_all;
}

}  // namespace llmi

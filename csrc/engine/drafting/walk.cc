#include "engine/drafting/walk.h"

#include <algorithm>

#include "speculative/likeliest.h"

namespace llmi {
namespace {

// The stream rows of the piece's committed tokens.
std::vector<size_t> CommittedRows(const StreamedPiece& piece) {
  const DraftWalk& walk = piece.sample->walk;
  std::vector<size_t> rows;
  for (int64_t i = 0; i < piece.num_tokens; ++i) rows.push_back(piece.place + static_cast<size_t>(i));
  const size_t first_node = rows.size();
  for (int32_t node : walk.accepted()) rows.push_back(piece.place + first_node + static_cast<size_t>(node));
  return rows;
}

// Siblings that started in this step begin with the leader's rows.
void ShareRows(const Sample& leader) {
  for (const auto& sibling : leader.running->samples) {
    if (sibling.get() == &leader || !sibling->started || sibling->drafting.rows().next() >= 0) continue;
    sibling->drafting.rows() = leader.drafting.rows();
    sibling->scheduled.first_streamed_row = leader.scheduled.first_streamed_row;
  }
}

}  // namespace

std::vector<int32_t> ChildrenToJudge(const LogitsRow& row) {
  if (row.plan.decider != RowDecider::kRule) return {};
  return row.sample->walk.draft().Children(row.node);
}

void WalkOn(KvCache& cache, Sample& sample, int32_t child) {
  if (sample.walk.draft().size() == 0) return;
  if (child < 0) {
    sample.walk.Stop();
    return;
  }
  // The walk's later nodes are stored further right: none is overwritten.
  const auto accept = [&](ScheduledSequence& sequence) {
    KvSequence& kv = sequence.kv;
    const int64_t first_slot = kv.num_tokens - sample.walk.num_accepted();
    cache.MoveSlot(kv, first_slot + child, kv.num_tokens);
    cache.Commit(&kv, 1, *sequence.token_ids);
    sequence.max_computed = std::max(sequence.max_computed, kv.num_tokens);
  };
  accept(sample.scheduled);
  if (sample.companion != nullptr) accept(sample.companion->scheduled);
  sample.walk.Accept(child);
}

void LearnRow(const LogitsRow& row, std::span<const float> logits) {
  Sample& sample = *row.sample;
  Drafter& drafter = *sample.request().speculation->drafter;
  const std::vector<int32_t> likeliest = LikeliestTokens(logits, drafter.traits().num_likeliest);
  const int32_t token = row.node == kWalkRoot ? sample.tokens[static_cast<size_t>(row.position)]
                                              : sample.walk.draft().token_ids[static_cast<size_t>(row.node)];
  drafter.Learn(*sample.drafting.state(), {token, row.node, likeliest}, !sample.judges_drafts());
}

void KeepHiddenStates(const std::vector<LogitsRow>& rows, const std::vector<int>& layers, const ForwardResult& result,
                      int64_t hidden_size) {
  if (layers.empty()) return;
  const auto keep = [&](Sample& sample, size_t row) {
    const std::vector<int>& wanted = sample.request().speculation->drafter->traits().hidden_layers;
    for (size_t t = 0; t < layers.size(); ++t) {
      if (std::find(wanted.begin(), wanted.end(), layers[t]) == wanted.end()) continue;  // another request's
      const auto size = static_cast<size_t>(hidden_size);
      sample.drafting.KeepHiddenState(layers[t], std::span(result.taps[t]).subspan(row * size, size));
    }
  };
  for (size_t i = 0; i < rows.size(); ++i) {
    Sample& sample = *rows[i].sample;
    if (!rows[i].draws || sample.finished || !sample.request().speculation) continue;
    if (rows[i].node == sample.walk.drawn_at()) keep(sample, i);
    // Siblings that started in this step drew their first token from the leader's row.
    for (const auto& sibling : sample.running->samples) {
      if (sample.index == 0 && sibling->started && sibling->drafting.hidden_states().empty()) keep(*sibling, i);
    }
  }
}

void KeepHiddenRows(const LaunchedStep& step, int64_t hidden_size) {
  const auto size = static_cast<size_t>(hidden_size);
  for (const StreamedPiece& piece : step.streamed) {
    Sample& sample = *piece.sample;
    const std::vector<size_t> rows = CommittedRows(piece);
    HiddenChunk chunk = {piece.first_row, static_cast<int64_t>(rows.size()), {}};
    for (int layer : sample.request().speculation->drafter->traits().hidden_layers) {
      const auto place =
          static_cast<size_t>(std::find(step.stream_layers.begin(), step.stream_layers.end(), layer) - step.stream_layers.begin());
      const std::vector<float>& stream = step.result.streams[place];
      std::vector<float>& values = chunk.layers[layer];
      values.reserve(rows.size() * size);
      for (size_t row : rows) {
        const auto from = stream.begin() + static_cast<int64_t>(row * size);
        values.insert(values.end(), from, from + hidden_size);
      }
    }
    if (!rows.empty()) sample.drafting.rows().Add(std::move(chunk));
    sample.scheduled.first_streamed_row = sample.drafting.rows().next();
    if (sample.index == 0) ShareRows(sample);
  }
}

}  // namespace llmi

// Rows that are drawn where their logits lie. What the host must see - processors, samplers, criteria, log-probabilities, traces,
// judges, prompt scores, siblings that start - comes to it as before; the tokens are the same bits.
#include <algorithm>

#include "engine/running.h"
#include "kernels/device.h"
#include "kernels/transfer.h"
#include "sampling/edits.h"

namespace llmi {
namespace {

// Tokens of the draft from its root to `node`.
void AppendPath(const Draft& draft, int32_t node, std::vector<int32_t>* tokens) {
  const size_t begin = tokens->size();
  for (; node != kWalkRoot; node = draft.parent(node)) tokens->push_back(draft.token_ids[static_cast<size_t>(node)]);
  std::reverse(tokens->begin() + static_cast<int64_t>(begin), tokens->end());
}

}  // namespace

bool Engine::MayDrawThere(const LogitsRow& row) {
  const Sample& sample = *row.sample;
  if (sample.finished || !row.draws) return false;
  const Request& request = *sample.running->request;
  const SamplingParams& params = request.params;
  if (params.max_tokens == 0 || params.num_logprobs >= 0 || request.trace || request.hooks != nullptr) return false;
  if (!sample.started && sample.running->samples.size() > 1) return false;
  if (sample.draft.size() == 0) return true;
  // A coupled draft's rows draw as plain ones do, each with the history that the walk has when it comes by.
  return request.speculation->verification == VerificationKind::kCoupled && sample.draft_logprobs.empty();
}

// Room for a row of this chunk.
float* Engine::HostRow(int64_t row) {
  const int64_t vocab_size = decoder_->config().vocab_size;
  if (const auto needed = static_cast<size_t>((row + 1) * vocab_size); logits_.size() < needed) logits_.resize(needed);
  return logits_.data() + row * vocab_size;
}

void Engine::DrawThere(std::span<const LogitsRow> rows, const float* hidden) {
  const int64_t vocab_size = decoder_->config().vocab_size;
  const int64_t hidden_size = decoder_->config().hidden_size;
  float* there = decoder_->LogitsThere(context_, hidden, static_cast<int64_t>(rows.size()));
  drawn_there_.assign(rows.size(), kNoToken);
  DrawList draws;
  std::vector<size_t> places;
  std::vector<int32_t> tokens;
  for (size_t i = 0; i < rows.size(); ++i) {
    const Sample& sample = *rows[i].sample;
    const auto row = static_cast<int64_t>(i);
    if (!MayDrawThere(rows[i])) {
      if (!sample.finished) ToHost(context_, HostRow(row), there + row * vocab_size, static_cast<size_t>(vocab_size) * sizeof(float));
      continue;
    }
    tokens = sample.tokens;
    AppendPath(sample.draft, rows[i].node, &tokens);
    draws.Add(sample.running->request->params, {tokens, sample.running->prompt_len()}, sample.index, row, vocab_size);
    places.push_back(i);
  }
  if (places.empty()) return;
  std::vector<int32_t> drawn(places.size());
  context_.device->Draw(draws.batch(), there, vocab_size, drawn.data());
  for (size_t i = 0; i < places.size(); ++i) {
    drawn_there_[places[i]] = drawn[i];
    if (drawn[i] != kNoToken) continue;
    // The host says what is wrong with the row: its logits once more, as they were before masks and penalties.
    const auto row = static_cast<int64_t>(places[i]);
    decoder_->LmHead(context_, hidden + row * hidden_size, 1, HostRow(row));
  }
  const std::lock_guard lock(mutex_);
  stats_.num_device_draws += static_cast<int64_t>(places.size());
}

}  // namespace llmi

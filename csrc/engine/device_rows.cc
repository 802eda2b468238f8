// Rows that are drawn where their logits lie. What the host must see - processors, samplers, criteria, log-probabilities, traces,
// judges, prompt scores, siblings that start - comes to it as before; the tokens are the same bits.
#include <algorithm>

#include "engine/clock.h"
#include "engine/drafting/walk.h"
#include "engine/engine.h"
#include "engine/verification.h"
#include "kernels/dispatch/device.h"
#include "kernels/dispatch/transfer.h"
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
  if (!row.draws) return false;
  const Request& request = *sample.running->request;
  const SamplingParams& params = request.params;
  if (params.max_tokens == 0 || params.num_logprobs >= 0 || request.trace || request.hooks != nullptr) return false;
  if (!sample.started && sample.running->samples.size() > 1) return false;
  if (sample.draft.size() == 0) return true;
  if (!sample.draft_logprobs.empty()) return false;
  // A draft's rows draw, or are judged, each with the history that the walk has when it comes by.
  const SpeculationConfig& speculation = *request.speculation;
  return speculation.verification == VerificationKind::kCoupled ||
         (speculation.verification == VerificationKind::kRule && speculation.rule->is_default());
}

// Room for a row of this chunk.
float* Engine::HostRow(int64_t row) {
  const int64_t vocab_size = decoder_->config().vocab_size;
  if (const auto needed = static_cast<size_t>((row + 1) * vocab_size); logits_.size() < needed) logits_.resize(needed);
  return logits_.data() + row * vocab_size;
}

PendingDraws Engine::LaunchDraws(std::span<const LogitsRow> rows, const float* hidden) {
  const int64_t vocab_size = decoder_->config().vocab_size;
  float* there = decoder_->LogitsThere(context_, hidden, static_cast<int64_t>(rows.size()));
  PendingDraws pending;
  DrawList draws;
  std::vector<int32_t> tokens;
  for (size_t i = 0; i < rows.size(); ++i) {
    const Sample& sample = *rows[i].sample;
    const auto row = static_cast<int64_t>(i);
    if (sample.finished || sample.walk == kWalkEnded) continue;  // at a row of an earlier chunk: the walk does not come by
    const std::vector<int32_t> children = ChildrenToJudge(sample, rows[i].node);
    const int64_t num_laws = sample.draft.laws.empty() ? 0 : static_cast<int64_t>(children.size());
    if (!MayDrawThere(rows[i]) || draws.num_laws() + num_laws > kMostDrawLaws) {
      ToHost(context_, HostRow(row), there + row * vocab_size, static_cast<size_t>(vocab_size) * sizeof(float));
      continue;
    }
    tokens = sample.tokens;
    tokens.resize(tokens.size() - static_cast<size_t>(sample.num_accepted));  // on the path, by a row of an earlier chunk
    AppendPath(sample.draft, rows[i].node, &tokens);
    if (rows[i].after >= 0) tokens.push_back(0);  // in the place of the one that is not known
    const SamplingParams& params = sample.running->request->params;
    draws.Add(params, {tokens, sample.running->prompt_len()}, sample.index, row, vocab_size, rows[i].after);
    if (!children.empty()) {
      const NoiseKey key = {params.seed, static_cast<int64_t>(tokens.size()), sample.index, 0, sample.round};
      AddVerification(key, sample.draft, children, &draws);
    }
    pending.places.push_back(i);
  }
  if (draws.size() > 0) pending.ticket = context_.device->Draw(draws.batch(), there, vocab_size);
  return pending;
}

void Engine::TakeDraws(std::span<const LogitsRow> rows, const float* hidden, const PendingDraws& draws) {
  drawn_there_.assign(rows.size(), kNotDrawn);
  if (draws.places.empty()) return;
  const DrawnRows drawn = context_.device->TakeDrawn(draws.ticket);
  if (ahead_ != nullptr) ahead_->start_s = NowSeconds();
  for (size_t i = 0; i < draws.places.size(); ++i) {
    const size_t place = draws.places[i];
    const Sample& sample = *rows[place].sample;
    RowVerdict& verdict = drawn_there_[place];
    verdict = {drawn.tokens[i], kFindChild};
    if (const std::vector<int32_t> children = ChildrenToJudge(sample, rows[place].node); !children.empty()) {
      verdict.child = drawn.accepted[i] < 0 ? kWalkRoot : children[static_cast<size_t>(drawn.accepted[i])];
    }
    if (verdict.token != kNoToken || sample.finished) continue;
    // The host says what is wrong with the row: its logits once more, as they were before masks and penalties. A step ahead had no token.
    ahead_.reset();
    const auto row = static_cast<int64_t>(place);
    decoder_->LmHead(context_, hidden + row * decoder_->config().hidden_size, 1, HostRow(row));
  }
  stats_.num_device_draws += static_cast<int64_t>(draws.places.size());
}

}  // namespace llmi

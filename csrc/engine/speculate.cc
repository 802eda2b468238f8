// Speculation inside the step: drafts go into the batch behind the last committed token; the walk then takes the
// rows in order and draws at each exactly as plain decoding would (coupled verification). As long as the drawn
// token was drafted, the next row is there already. So penalties, hooks, stop rules and log-probabilities see the
// same calls with and without drafts, and the tokens are the same bits.
#include <algorithm>
#include <limits>
#include <set>
#include <span>
#include <utility>

#include "core/errors.h"
#include "engine/clock.h"
#include "engine/engine.h"
#include "kernels/ops/vocab.h"

namespace llmi {
namespace {

constexpr int64_t kMaxAutoLength = 16;
constexpr size_t kMaxKnownDrafters = 256;

// What "auto" reckons with where a clock must not enter the result: acceptance and rejection depend on draft lengths. With 16-bit
// activations more rows cost more (SmolLM2: 1.05, 1.08, 1.31, 1.44, 1.48, 1.55 times 8 bits for 1, 2, 4, 8, 16, 32 rows).
const CostCurve& RecordedCosts(bool wide_activations) {
  static const CostCurve costs({{1, 1.0}, {2, 1.05}, {4, 1.2}, {8, 1.8}, {16, 3.2}, {32, 6.0}});
  static const CostCurve wide_costs({{1, 1.0}, {2, 1.1}, {4, 1.5}, {8, 2.5}, {16, 4.6}, {32, 8.9}});
  return wide_activations ? wide_costs : costs;
}

}  // namespace

// A started continuation that computes its last token alone in this step.
bool Engine::MayDraft(const ScheduledPiece& piece) const {
  const auto& sample = *static_cast<const Sample*>(piece.sequence->owner);
  if (sample.finished || !sample.started || piece.num_new != 1) return false;
  return sample.running->request->speculation.has_value() && piece.sequence->kv.num_tokens + 1 == piece.sequence->num_tokens;
}

// Most nodes of a draft: what was asked for; where drafts may be cut, as far as the step has rows left. CutDepth sees to the last token
// wanted.
int64_t Engine::DraftLimit(const Sample& sample, int64_t room) const {
  const Request& request = *sample.running->request;
  const int64_t wanted = request.speculation->num_tokens < 0 ? kMaxAutoLength : request.speculation->num_tokens;
  const bool whole = request.speculation->verification == VerificationKind::kJudge;
  return std::min({wanted, sample.judges_drafts() ? kMaxDraftNodes : room, whole ? kMaxJudgedNodes : kMaxDraftNodes});
}

int64_t Engine::ChosenLength(const Sample& sample, int32_t confidence, int64_t limit, const StepPlan& plan) {
  const SpeculationConfig& speculation = *sample.running->request->speculation;
  if (speculation.num_tokens >= 0 && speculation.length_policy == nullptr) return limit;
  const auto rates = sample.acceptance[static_cast<size_t>(confidence)].Rates();
  if (speculation.verification != VerificationKind::kCoupled && speculation.length_policy == nullptr) {
    return ChooseLength(rates, RecordedCosts(context_.wide_activations), {1, 1, 0, limit}) > 0
               ? limit
               : 0;  // trees of a fixed shape want their room
  }
  if (speculation.length_policy != nullptr) {
    return std::clamp<int64_t>(speculation.length_policy->Choose(rates, costs_->SecondsByRows(), scheduler_->num_running()), 0, limit);
  }
  const DrafterHistory& history = History(speculation.drafter.get());
  // Steps take longer than their forward alone: a drafter's seconds are weighed on the scale of the curve.
  LengthQuestion question = {plan.expected_tokens, plan.num_rows, history.per_token.seconds() / costs_->decode_ratio(), limit,
                             costs_->drafted_ratio()};
  if (sample.drafter_state == nullptr) {
    question.start_seconds = history.per_start_token.seconds() * static_cast<double>(sample.tokens.size()) / costs_->decode_ratio();
    question.remaining_tokens = sample.scheduled.max_new_tokens;
  }
  return ChooseLength(rates, costs_->Curve(), question);
}

// Before a step is scheduled: drafts that will be accepted and rejected. Each token of a sequence has one, and all of it goes into the
// step that computes that token, which may not be the next (scheduler.h). Chance of the batch has no part in it.
void Engine::ProposeWholeDrafts() {
  std::vector<Sample*> samples;
  for (ScheduledSequence* sequence : scheduler_->running()) {
    auto* sample = static_cast<Sample*>(sequence->owner);
    if (sample->finished || !sample->started || !sample->judges_drafts() || sample->whole_draft) continue;
    sample->whole_draft.emplace();
    samples.push_back(sample);
  }
  Propose(samples, {0, static_cast<double>(samples.size())});
}

// The drafts of a step that is scheduled: the whole ones, and others in the room that is left.
void Engine::ProposeDrafts(std::vector<ScheduledPiece>* pieces) {
  std::vector<Sample*> samples;
  StepPlan plan = {0, static_cast<double>(pieces->size())};
  for (const ScheduledPiece& piece : *pieces) {
    auto* sample = static_cast<Sample*>(piece.sequence->owner);
    sample->draft = {};
    sample->confidence = 0;
    sample->walk = kWalkRoot;
    sample->num_accepted = 0;
    plan.num_rows += piece.num_new + piece.num_drafted;
    const bool draws = piece.sequence->kv.num_tokens + piece.num_new == piece.sequence->num_tokens;
    if (sample->whole_draft && draws) {
      sample->draft = std::move(*sample->whole_draft);
      sample->whole_draft.reset();
      sample->scheduled.num_drafted = 0;
    } else if (MayDraft(piece) && !sample->judges_drafts()) {
      samples.push_back(sample);
    }
  }
  Propose(samples, plan);
  // Requests that failed here have given their blocks back.
  std::erase_if(*pieces, [](const ScheduledPiece& piece) { return piece.sequence->kv.tables[0].empty(); });
}

void Engine::Propose(const std::vector<Sample*>& samples, StepPlan plan) {
  if (samples.empty()) return;
  if (drafters_.size() > kMaxKnownDrafters) drafters_.clear();
  std::vector<DraftCall> calls = ChooseDrafts(samples, &plan);
  for (DraftCall& call : calls) AskDrafter(call);
  for (DraftCall& call : calls) {
    for (size_t i = 0; i < call.samples.size(); ++i) {
      if (call.looks_first) ChooseLengthOfDraft(*call.samples[i], call.contexts[i], &plan);
      TakeDraft(*call.samples[i], call.contexts[i]);
    }
  }
}

// Who drafts how much in this step: one call for each drafter, with all sequences that it drafts for.
std::vector<Engine::DraftCall> Engine::ChooseDrafts(const std::vector<Sample*>& samples, StepPlan* plan) {
  std::vector<DraftCall> calls;
  std::set<Drafter*> resting;
  for (Sample* sample : samples) {
    if (sample->finished) continue;  // a sibling failed
    Running& running = *sample->running;
    const SpeculationConfig& speculation = *running.request->speculation;
    try {
      if (sample->drafter_state == nullptr) TakePrior(*sample);
      const bool coupled = speculation.verification == VerificationKind::kCoupled;
      const bool looks_first =
          coupled && speculation.num_tokens < 0 && speculation.length_policy == nullptr && speculation.drafter->tells_confidence();
      const int64_t limit = DraftLimit(*sample, config_.scheduler.max_num_batched_tokens - plan->num_rows);
      const int64_t length = limit < 1 || looks_first ? limit : ChosenLength(*sample, 0, limit, *plan);
      if (length < 1) {
        sample->acceptance[0].Rest();
        resting.insert(speculation.drafter.get());
        continue;
      }

      DraftContext context;
      context.request_id = running.request->id;
      context.sample_index = sample->index;
      context.token_ids = sample->tokens;
      context.prompt_len = running.prompt_len();
      context.max_nodes = length;
      context.round = ++sample->round;
      context.wants_laws = !coupled;
      context.hidden_states = &sample->hidden_states;
      const bool starts = sample->drafter_state == nullptr;
      if (starts) sample->drafter_state = speculation.drafter->NewState(running.request->id, sample->index);
      context.state = sample->drafter_state.get();
      const auto known = std::find_if(calls.begin(), calls.end(), [&](const auto& call) {
        return call.drafter == speculation.drafter.get() && call.looks_first == looks_first;
      });
      DraftCall& call = known == calls.end() ? calls.emplace_back(DraftCall{speculation.drafter.get(), {}, {}, looks_first}) : *known;
      call.samples.push_back(sample);
      if (starts) call.num_start_tokens += static_cast<int64_t>(sample->tokens.size());
      call.contexts.push_back(std::move(context));
      if (looks_first) continue;
      plan->num_rows += length;
      plan->expected_tokens += sample->acceptance[0].Rates()[0];
    } catch (const Error& error) {
      requests_->Fail(running, error);
    }
  }
  for (const DraftCall& call : calls) resting.erase(call.drafter);
  for (Drafter* drafter : resting) {
    DrafterHistory& history = History(drafter);
    history.per_token.Rest();
    history.per_start_token.Rest();
  }
  return calls;
}

Engine::DrafterHistory::DrafterHistory(const Drafter& drafter) {
  for (auto& records : acceptance) {
    for (size_t i = 0; i < kNumConfidences; ++i) records[i] = AcceptanceRecord(drafter.expected_acceptance(static_cast<int32_t>(i)));
  }
}

Engine::DrafterHistory& Engine::History(Drafter* drafter) { return drafters_.try_emplace(drafter, *drafter).first->second; }

// What is known of the drafter before this sequence's first draft.
void Engine::TakePrior(Sample& sample) {
  if (std::any_of(sample.acceptance.begin(), sample.acceptance.end(), [](const auto& record) { return !record.empty(); })) return;
  const Request& request = *sample.running->request;
  const SpeculationConfig& speculation = *request.speculation;
  const bool greedy = request.params.greedy();
  // Other sequences' luck may enter where tokens do not depend on lengths.
  if (speculation.verification != VerificationKind::kCoupled) {
    sample.acceptance = DrafterHistory(*speculation.drafter).acceptance[greedy];
    return;
  }
  const auto& of_others = History(speculation.drafter.get()).acceptance[greedy];
  std::transform(of_others.begin(), of_others.end(), sample.acceptance.begin(), [](const auto& record) { return record.AsPrior(); });
}

// A draft is there, of a kind whose acceptance is known: as much of it is kept as pays.
void Engine::ChooseLengthOfDraft(Sample& sample, DraftContext& context, StepPlan* plan) {
  const int64_t room = DraftLimit(sample, config_.scheduler.max_num_batched_tokens - plan->num_rows);
  const int64_t limit = std::min(room, context.draft.size());
  if (limit < 1) {
    context.draft = {};
    return;
  }
  AcceptanceRecord& acceptance = sample.acceptance[static_cast<size_t>(context.confidence)];
  const int64_t length = ChosenLength(sample, context.confidence, limit, *plan);
  context.draft = CutDepth(context.draft, length);
  sample.confidence = context.confidence;
  if (length == 0) {
    acceptance.Rest();
    return;
  }
  plan->num_rows += length;
  plan->expected_tokens += acceptance.Rates()[0];
}

void Engine::AskDrafter(DraftCall& call) {
  std::vector<DraftContext*> contexts;
  for (DraftContext& context : call.contexts) contexts.push_back(&context);
  const double start = NowSeconds();
  call.drafter->Propose(contexts);
  const double seconds = NowSeconds() - start;
  int64_t num_nodes = 0;
  for (const DraftContext& context : call.contexts) num_nodes += std::max<int64_t>(1, context.draft.size());
  DrafterHistory& history = History(call.drafter);
  if (call.num_start_tokens > 0) {
    const double start_seconds = std::max(0.0, seconds - history.per_token.seconds() * static_cast<double>(num_nodes));
    history.per_start_token.Learn(start_seconds / static_cast<double>(call.num_start_tokens));
  } else {
    history.per_token.Learn(seconds / static_cast<double>(num_nodes));
  }
  for (Sample* sample : call.samples) {
    sample->running->output(*sample).speculation.draft_time_s += seconds / static_cast<double>(call.samples.size());
  }
}

void Engine::TakeDraft(Sample& sample, DraftContext& context) {
  if (sample.finished) return;  // a sibling failed
  Running& running = *sample.running;
  const int64_t tokens_left = running.request->params.max_tokens - static_cast<int64_t>(running.output(sample).token_ids.size());
  Draft draft;
  try {
    if (context.error) throw *context.error;
    CheckDraft(&context.draft, decoder_->config().vocab_size, context.max_nodes);
    draft = CutDepth(context.draft, tokens_left - 1);
    if (sample.judges_drafts()) CheckFits(sample, draft);
  } catch (const Error& error) {
    requests_->Fail(running, error);
    return;
  }
  if (draft.size() == 0) return;
  if (!sample.judges_drafts() && !cache_->TryReserve(&sample.scheduled.kv, 1 + draft.size(), KvCache::Reclaim::kCacheOnly)) {
    return;  // blocks come from free ones only: nothing is preempted for a guess
  }
  if (running.request->speculation->drafter->wants_observe()) {
    sample.draft_logprobs.assign(static_cast<size_t>(draft.size()), std::numeric_limits<float>::quiet_NaN());
  }
  if (sample.judges_drafts()) {
    sample.scheduled.num_drafted = draft.size();
    sample.whole_draft = std::move(draft);
  } else {
    sample.draft = std::move(draft);
  }
}

// A tree has more nodes than tokens may follow: with little cache it may not fit even alone.
void Engine::CheckFits(const Sample& sample, const Draft& draft) const {
  const auto last_len = static_cast<int64_t>(sample.tokens.size()) + draft.size();
  const int64_t pages = cache_->groups().MaxPages(last_len, std::max(config_.block_size, 1 + draft.size()));
  if (pages <= config_.num_pages) return;
  const int64_t page_bytes = cache_->groups().page_bytes();
  throw Error::OutOfMemory("a draft of " + std::to_string(draft.size()) + " tokens behind " + std::to_string(sample.tokens.size()) +
                               " needs " + std::to_string(pages) + " KV pages, the cache has " + std::to_string(config_.num_pages) +
                               ": lower num_speculative_tokens or raise kv_cache_memory_bytes",
                           static_cast<uint64_t>(pages * page_bytes), static_cast<uint64_t>(config_.num_pages * page_bytes));
}

// Under acceptance and rejection: the nodes that are judged for what follows the row of `node`.
std::vector<int32_t> Engine::ChildrenToJudge(const Sample& sample, int32_t node) {
  if (sample.draft.size() == 0 || sample.running->request->speculation->verification != VerificationKind::kRule) return {};
  return sample.draft.Children(node);
}

// law_ holds the law of the row that the walk is at.
void Engine::NoteDraftLogprobs(const Running& running, Sample& sample, int32_t token) {
  const bool greedy = running.request->params.greedy();
  const float total = greedy ? 0.0f : LogSumExp(context_, law_.data(), static_cast<int64_t>(law_.size()));
  for (int32_t node : sample.draft.Children(sample.walk)) {
    const int32_t id = sample.draft.token_ids[static_cast<size_t>(node)];
    float& logprob = sample.draft_logprobs[static_cast<size_t>(node)];
    logprob = greedy ? (id == token ? 0.0f : -std::numeric_limits<float>::infinity()) : law_[static_cast<size_t>(id)] - total;
  }
}

// What drafters want to see of the target: hidden states of the row that a sequence's last token was drawn from. Siblings that
// started in this step drew theirs from the leader's.
void Engine::KeepHiddenStates(const std::vector<LogitsRow>& rows, const std::vector<int>& layers, const ForwardResult& result) {
  if (layers.empty()) return;
  const int64_t hidden_size = decoder_->config().hidden_size;
  const auto keep = [&](Sample& sample, size_t row) {
    for (size_t t = 0; t < layers.size(); ++t) {
      const auto first = result.taps[t].begin() + static_cast<int64_t>(row) * hidden_size;
      sample.hidden_states[layers[t]].assign(first, first + hidden_size);
    }
  };
  for (size_t i = 0; i < rows.size(); ++i) {
    Sample& sample = *rows[i].sample;
    const Running& running = *sample.running;
    if (!rows[i].draws || sample.finished || !running.request->speculation) continue;
    if (rows[i].node == sample.drawn_at) keep(sample, i);
    for (const auto& sibling : running.samples) {
      if (sample.index == 0 && sibling->started && sibling->hidden_states.empty()) keep(*sibling, i);
    }
  }
}

void Engine::WalkOn(Sample& sample, int32_t child) {
  if (sample.draft.size() == 0) return;
  if (child < 0) {
    sample.walk = kWalkEnded;
    return;
  }
  // The accepted node's K and V move into the slot of its position. The walk's later nodes lie further right.
  KvSequence& kv = sample.scheduled.kv;
  const int64_t first_slot = kv.num_tokens - sample.num_accepted;
  cache_->MoveSlot(kv, first_slot + child, kv.num_tokens);
  cache_->Commit(&kv, 1, sample.tokens);
  sample.scheduled.max_computed = std::max(sample.scheduled.max_computed, kv.num_tokens);
  sample.walk = child;
  ++sample.num_accepted;
}

void Engine::EndWalks(const std::vector<ScheduledPiece>& pieces, double forward_seconds, int64_t num_rows) {
  for (const ScheduledPiece& piece : pieces) {
    auto* sample = static_cast<Sample*>(piece.sequence->owner);
    const int64_t num_nodes = sample->draft.size();
    if (num_nodes == 0) continue;
    const std::vector<int32_t> depths = sample->draft.Depths();
    const int64_t depth = *std::max_element(depths.begin(), depths.end());
    Running& running = *sample->running;
    SpeculationStats& stats = running.output(*sample).speculation;
    ++stats.num_drafts;
    stats.num_draft_tokens += num_nodes;
    stats.num_accepted_tokens += sample->num_accepted;
    stats.verify_time_s += forward_seconds * static_cast<double>(1 + num_nodes) / static_cast<double>(num_rows);
    stats.num_accepted_per_position.resize(std::max(stats.num_accepted_per_position.size(), static_cast<size_t>(depth)));
    for (int64_t i = 0; i < sample->num_accepted; ++i) ++stats.num_accepted_per_position[static_cast<size_t>(i)];
    // A walk that a stop rule ended says nothing about what came after.
    if (sample->walk == kWalkEnded || sample->num_accepted == depth) {
      const auto confidence = static_cast<size_t>(sample->confidence);
      sample->acceptance[confidence].Add(depth, sample->num_accepted);
      DrafterHistory& history = History(running.request->speculation->drafter.get());
      history.acceptance[running.request->params.greedy()][confidence].Add(depth, sample->num_accepted);
    }
    if (!sample->finished) cache_->Trim(&sample->scheduled.kv);
    const std::vector<float> logprobs = std::exchange(sample->draft_logprobs, {});
    sample->draft = {};
    if (logprobs.empty() || running.request->error) continue;
    try {
      running.request->speculation->drafter->Observe(running.request->id, sample->index, sample->num_accepted, logprobs);
    } catch (const Error& error) {
      requests_->Fail(running, error);
    }
  }
}

CostCurve Engine::Costs() {
  CostCurve curve;
  Execute([&] { curve = costs_->Curve(); });
  return curve;
}

}  // namespace llmi

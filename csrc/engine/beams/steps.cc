#include "engine/beams/steps.h"

#include <algorithm>
#include <utility>

#include "core/errors.h"
#include "engine/beams/records.h"
#include "engine/clock.h"
#include "engine/emit.h"
#include "sampling/filters/row.h"

namespace llmi {
namespace {

// Whether processors, criteria or stop strings read texts while the search runs.
bool ReadsTexts(const Request& request) {
  return request.params.detokenize && (!request.params.stop.empty() || !request.params.stop_program.empty() || request.hooks != nullptr);
}

bool HasCriteria(const Request& request) { return request.hooks != nullptr && request.hooks->HasCriteria(); }

}  // namespace

BeamSteps::BeamSteps(const KernelContext& context, KvCache& cache, Scheduler& scheduler, ActiveRequests& requests,
                     UserProcessors& processors, int64_t vocab_size)
    : context_(context),
      cache_(cache),
      scheduler_(scheduler),
      requests_(requests),
      processors_(processors),
      rows_(context, processors, vocab_size) {}

int64_t BeamSteps::Take(const LogitsRow& row, int64_t step_index) {
  Running& running = *row.sample->running;
  BeamArrival& arrival = running.beams->arrival(*row.sample);
  if (arrival.error) std::rethrow_exception(arrival.error);
  arrival.arrived = true;
  if (!running.beams->all_arrived()) return 0;
  step_index_ = step_index;
  return Select(running);
}

// One step of the search.
int64_t BeamSteps::Select(Running& running) {
  BeamGroup& group = *running.beams;
  now_ = NowSeconds();
  if (running.request->first_token_time_s == 0) running.request->first_token_time_s = now_;
  num_trials_ = 0;
  std::vector<Child> children;
  for (BeamTeam& team : group.teams()) {
    if (team.done) continue;
    const std::vector<RunningBeam> beams = std::exchange(team.running, {});
    SelectTeam(running, team, beams, group.FirstRank(team), &children);
  }
  const bool ended = std::all_of(group.teams().begin(), group.teams().end(), [](const BeamTeam& team) { return team.done; });
  if (ended) CheckFound(group);
  group.BeginStep();
  const auto num_taken = static_cast<int64_t>(children.size());
  if (ended) {
    requests_.FinishAll(running, FinishReason::kStop);
  } else {
    Continue(running, children);
  }
  if (num_trials_ > 0) running.request->hooks->EndTrials();
  return std::max<int64_t>(num_taken, 1);
}

// Throws if the search has ended without a hypothesis: nothing is allowed after any beam.
void BeamSteps::CheckFound(BeamGroup& group) {
  const auto has_found = [](const BeamTeam& team) { return !team.finished.beams().empty(); };
  if (std::any_of(group.teams().begin(), group.teams().end(), has_found)) return;
  throw Error(ErrorKind::kConstraint, "no beam is left: masks, biases, constraints or processors allow no token after any of them");
}

// The ranked candidates of a team. earlier: the children of earlier teams, whose tokens the diversity penalty counts.
std::vector<BeamCandidate> BeamSteps::Candidates(BeamGroup& group, std::span<const RunningBeam> beams, int64_t first_rank,
                                                 std::span<const Child> earlier) const {
  std::vector<BeamCandidate> candidates;
  for (size_t i = 0; i < beams.size(); ++i) {
    for (BeamCandidate candidate : group.arrival(*beams[i].sample).candidates) {
      candidate.parent = first_rank + static_cast<int64_t>(i);
      if (group.params().diversity_penalty != 0) {
        const auto taken = [&](const Child& child) { return child.candidate.token == candidate.token; };
        candidate.score -= group.params().diversity_penalty * static_cast<double>(std::count_if(earlier.begin(), earlier.end(), taken));
      }
      candidates.push_back(candidate);
    }
  }
  return BestOfAll(std::move(candidates), group.num_candidates(), group.params().do_sample);
}

void BeamSteps::SelectTeam(Running& running, BeamTeam& team, std::span<const RunningBeam> beams, int64_t first_rank,
                           std::vector<Child>* children) {
  BeamGroup& group = *running.beams;
  const int64_t width = group.team_width();
  const std::vector<BeamCandidate> candidates = Candidates(group, beams, first_rank, *children);
  const size_t first_child = children->size();
  for (size_t rank = 0; rank < candidates.size(); ++rank) {
    if (static_cast<int64_t>(children->size() - first_child) == width) break;
    const BeamCandidate& candidate = candidates[rank];
    const RunningBeam& beam = beams[static_cast<size_t>(candidate.parent - first_rank)];
    Place(running, {&team, beam.sample, candidate, beam.node, std::nullopt}, static_cast<int64_t>(rank), children);
  }
  // The team ends if no beam runs on, or if none is expected to improve.
  team.done = children->size() == first_child ||
              team.finished.Ends(group.scoring(), (*children)[first_child].candidate.score, group.num_tokens() + 1);
}

// Adds the child to the finished hypotheses, if it ends and counts as one, or to the children. rank: among the candidates.
void BeamSteps::Place(Running& running, Child child, int64_t rank, std::vector<Child>* children) {
  BeamGroup& group = *running.beams;
  const std::optional<TextEnd> end = EndOf(running, child);
  if (end && rank >= group.team_width()) return;
  child.node = AddNode(running, child);
  if (end) {
    group.AddFinished(*child.team, child.node, child.candidate, rank, *end);
  } else {
    children->push_back(std::move(child));
  }
}

// Whether the candidate ends a hypothesis. Its text and the state of the criteria are kept for the case that it does not.
std::optional<TextEnd> BeamSteps::EndOf(Running& running, Child& child) {
  const Request& request = *running.request;
  const int64_t num_output = running.beams->num_tokens() + 1;
  const auto before = std::span<const int32_t>(child.parent->tokens).subspan(static_cast<size_t>(running.prompt_len()));
  std::optional<TextEnd> end;
  if (ReadsTexts(request)) {
    const Stopwatch stopwatch(&running.request->detokenize_time_s);
    child.text = child.parent->detokenizer;
    end = EndOfText(request.params, before, child.candidate.token, &*child.text);
  } else {
    end = EndOfText(request.params, before, child.candidate.token, nullptr);
  }
  if (HasCriteria(request)) {  // they see the last token too
    child.trial = -(++num_trials_);
    request.hooks->CopyState(child.parent->index, child.trial);
    Sample& parent = *child.parent;
    parent.tokens.push_back(child.candidate.token);
    HookContext context = parent.hook_context();
    context.slot = child.trial;
    if (child.text) context.output_text = &child.text->text();
    try {
      const std::optional<TextEnd> wanted =
          EndByCriteria(request.hooks.get(), context, running.beams->arrival(parent).logits, processors_.seconds());
      if (!end) end = wanted;
    } catch (...) {
      parent.tokens.pop_back();
      throw;
    }
    parent.tokens.pop_back();
  }
  if (!end && num_output >= request.params.max_tokens) end = TextEnd{FinishReason::kLength};
  return end;
}

int32_t BeamSteps::AddNode(Running& running, const Child& child) {
  BeamGroup& group = *running.beams;
  BeamNode node = {child.node, child.candidate.token, static_cast<int32_t>(child.candidate.parent), now_};
  const BeamArrival& arrival = group.arrival(*child.parent);
  const SamplingParams& params = running.request->params;
  if (!arrival.scored.empty() && params.wants_logprobs()) {
    node.record = group.AddRecord(BeamLogprobs(context_, arrival, child.candidate.token, {params.num_logprobs, params.logprob_token_ids}));
  }
  if (!arrival.scored.empty() && running.request->trace) {
    const auto position = static_cast<int64_t>(child.parent->tokens.size());
    const bool draws = group.params().do_sample;
    node.trace = group.AddTrace(BeamTraceRow(context_, arrival, child.candidate, draws, step_index_, position, now_));
  }
  return group.AddNode(node);
}

// Gives each child a sample: the parent's own for its first child, a free one with a fork of the cache for the others.
void BeamSteps::Continue(Running& running, std::vector<Child>& children) {
  std::erase_if(children, [](const Child& child) { return child.team->done; });
  std::vector<bool> used(running.samples.size(), false);
  for (Child& child : children) {
    const auto index = static_cast<size_t>(child.parent->index);
    if (!used[index]) child.sample = child.parent;
    used[index] = true;
  }
  std::vector<Sample*> free;
  for (auto sample = running.samples.rbegin(); sample != running.samples.rend(); ++sample) {
    if (used[static_cast<size_t>((*sample)->index)]) continue;
    Release(**sample);
    free.push_back(sample->get());
  }
  for (Child& child : children) {
    if (child.sample != nullptr) continue;
    CheckInternal(!free.empty(), "a beam search has more beams than samples");
    child.sample = free.back();
    free.pop_back();
    Fork(*child.parent, *child.sample);
  }
  int64_t seats = 1 + running.request->num_samples - static_cast<int64_t>(children.size());
  for (Child& child : children) {
    child.sample->scheduled.num_seats = std::exchange(seats, 1);  // the first one keeps those of beams that may still come
    child.sample->rank = running.beams->FirstRank(*child.team) + static_cast<int64_t>(child.team->running.size());
    Extend(running, child);
  }
}

// Takes a sample that no beam runs in out of the scheduler.
void BeamSteps::Release(Sample& sample) {
  if (!sample.started) return;
  sample.scheduled.max_new_tokens = sample.scheduled.allowance;  // it says nothing about the length of outputs
  scheduler_.Remove(&sample.scheduled);
  cache_.Free(&sample.scheduled.kv);
  sample.scheduled.host_copy = nullptr;
  sample.started = false;
}

// The child gets the parent's tokens and cache. If the parent's pages were given back while it idled, the child waits, too.
void BeamSteps::Fork(const Sample& parent, Sample& child) {
  child.started = true;
  child.tokens = parent.tokens;
  if (parent.constraint != nullptr) child.constraint = parent.constraint->Fork();
  child.scheduled.max_new_tokens = parent.scheduled.max_new_tokens;
  child.scheduled.allowance = parent.scheduled.allowance;
  child.scheduled.max_computed = parent.scheduled.max_computed;
  child.scheduled.num_tokens = parent.scheduled.num_tokens;
  child.scheduled.first_wanted_row = INT64_MAX;
  if (parent.scheduled.kv.num_tokens > 0) {
    cache_.Fork(parent.scheduled.kv, &child.scheduled.kv);
    scheduler_.AddRunning(&child.scheduled);
  } else {
    cache_.Init(&child.scheduled.kv);
    child.scheduled.host_copy = parent.scheduled.host_copy;
    ++child.scheduled.num_preemptions;
  }
}

// The token becomes the last one of the child's sample, and the sample a running beam.
void BeamSteps::Extend(Running& running, Child& child) {
  Sample& sample = *child.sample;
  RequestHooks* hooks = running.request->hooks.get();
  const int64_t state = child.trial != 0 ? child.trial : child.parent->index;
  if (hooks != nullptr && state != sample.index) hooks->CopyState(state, sample.index);
  sample.started = true;
  sample.tokens.push_back(child.candidate.token);
  sample.scheduled.num_tokens = static_cast<int64_t>(sample.tokens.size());
  --sample.scheduled.max_new_tokens;
  sample.sampler = child.candidate.sampler;
  sample.emit_time_s = now_;
  if (child.text) sample.detokenizer = std::move(*child.text);
  if (sample.scheduled.kv.num_tokens == 0) scheduler_.Add(&sample.scheduled);  // it had left the queues
  child.team->running.push_back({&sample, child.candidate.score, child.node});
}

}  // namespace llmi
